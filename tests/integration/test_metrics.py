#!/usr/bin/env python3
"""GET /metrics: the lines for each caller, counts of HTTP requests, the process, vLLM's names.

TARN_TEST_MODEL names a model directory; without it a random one is made.
"""
from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable

from exposition import check_exposition, read_samples
from http_helpers import Server, make_model, run_tests, tarn_server, wait_until

TEXT = "/v1/completions"
FOLDER: Path
MODEL: Path


def serve(*options: str) -> Server:
    return tarn_server(MODEL, "--cache-dir", str(FOLDER / "cache"), "--threads", "1",
                       "--no-profile-cost", *options)


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"} if key else {}


def key_file(*keys: dict[str, Any]) -> str:
    path = FOLDER / "keys.json"
    path.write_text(json.dumps({"keys": list(keys)}))
    path.chmod(0o600)
    return str(path)


def page(server: Server, key: str = "") -> str:
    status, _, text = server.request("GET", "/metrics", None, bearer(key))
    assert status == 200, (status, text)
    check_exposition(text)
    return str(text)


class Page:
    """Samples by name and some of their labels."""

    def __init__(self, server: Server, key: str = "") -> None:
        self.samples = read_samples(page(server, key))

    def all(self, name: str, **labels: str) -> list[float]:
        want = set(labels.items())
        return [v for (n, have), v in self.samples.items() if n == name and want <= have]

    def get(self, name: str, **labels: str) -> float:
        found = self.all(name, **labels)
        assert len(found) == 1, (name, labels, found)
        return found[0]

    def labels(self, name: str) -> dict[str, str]:
        (found,) = [have for n, have in self.samples if n == name]
        return dict(found)


def wait_for(what: Callable[[], bool]) -> None:
    """An exchange is counted a moment after its client has the answer."""
    wait_until(what)


# --- which key sees which lines ---

def a_tenant_learns_nothing_of_another() -> None:
    path = key_file({"name": "a", "key": "sk-aaaaaaaa", "tenant": "ta", "requests_per_minute": 500},
                    {"name": "b", "key": "sk-bbbbbbbb", "tenant": "tb", "requests_per_minute": 9})
    body = {"prompt": [7 + i % 50 for i in range(77)], "max_tokens": 9, "ignore_eos": True}
    with serve("--api-key-file", path, "--admin-api-key", "boss-key") as s:
        def ask(key: str, **more: Any) -> int:
            return s.request("POST", TEXT, {**body, **more}, bearer(key))[0]

        def done(tenant: str) -> float:
            return Page(s, "boss-key").get("tarn:tenant_generation_tokens_total", tenant=tenant)

        assert ask("sk-aaaaaaaa") == 200
        wait_for(lambda: done("ta") == 9)
        before, all_before = page(s, "sk-aaaaaaaa"), page(s, "boss-key")
        waiting = s.open_raw("/tokenize", {"prompt": "x"})  # a client without a key
        for more in ({}, {"stream": True}, {"max_tokens": 5, "n": 3}):
            assert ask("sk-bbbbbbbb", **more) == 200
            assert page(s, "sk-aaaaaaaa") == before
        for more in ({"max_tokens": "x"}, {"no_such_field": 1, "prompt": 1}):
            assert ask("sk-bbbbbbbb", **more) in (400, 422)
        while ask("sk-bbbbbbbb") != 429:
            continue
        waiting.close()
        wait_for(lambda: done("tb") >= 9 * 2 + 5 * 3)
        assert page(s, "sk-aaaaaaaa") == before
        assert page(s, "boss-key") != all_before
        assert ask("sk-aaaaaaaa") == 200  # and a key sees its own lines
        wait_for(lambda: Page(s, "sk-aaaaaaaa").get("tarn:tenant_prompt_tokens_total") == 2 * 77)
        families = {n for n, _ in Page(s, "sk-aaaaaaaa").samples}
        assert all(n.startswith(("tarn:tenant_", "tarn:key_")) for n in families), families
        for word in ("tb", "sk-", '"b"', "boss", "admin-api-key"):
            assert word not in page(s, "sk-aaaaaaaa"), word
        wait_for(lambda: Page(s, "boss-key").get("vllm:num_requests_running") == 0)


def without_an_admin_key_a_key_sees_its_own_lines() -> None:
    with serve("--api-key", "plain-key") as s:
        assert s.request("GET", "/metrics")[0] == 401
        families = {n for n, _ in Page(s, "plain-key").samples}
        assert "tarn:tenant_requests_total" in families, families
        assert not any(n.startswith(("vllm:", "http_", "process_")) for n in families), families


def without_keys_only_this_machine_sees_metrics() -> None:
    with serve() as s:
        assert Page(s).get("vllm:num_requests_running") == 0
    with serve("--host", "0.0.0.0") as s:
        status, _, answer = s.request("GET", "/metrics")
        assert status == 403 and "--admin-api-key" in answer["error"]["message"], answer
        assert s.request("GET", "/v1/models")[0] == 200
    with serve("--host", "0.0.0.0", "--admin-api-key", "boss-key") as s:
        assert Page(s, "boss-key").get("vllm:num_requests_running") == 0


# --- HTTP ---

def requests_are_counted_by_route_and_status() -> None:
    with serve("--max-body-bytes", "2048") as s:
        long_body = {"prompt": "x" * 4000}
        asked = [("GET", "/v1/models", None, "/v1/models", 200, 3),
                 ("GET", "/v1/models/no-such", None, "/v1/models/{id}", 404, 2),
                 ("GET", "/health", None, "/health", 200, 4),
                 ("POST", "/v1/models", {}, "/v1/models", 405, 1),
                 ("POST", TEXT, b"{", TEXT, 400, 2),
                 ("POST", TEXT, {"prompt": "x", "max_tokens": 1}, TEXT, 200, 2),
                 ("POST", TEXT, {"prompt": "x", "max_tokens": 1, "stream": True}, TEXT, 200, 1),
                 ("POST", TEXT, long_body, TEXT, 413, 1),
                 ("BREW", "/pot", None, "other", 404, 1)]
        for method, path, body, _, status, n in asked:
            for _ in range(n):
                assert s.request(method, path, body)[0] == status, (method, path)
        for i in range(300):  # whatever clients make up, no series is added
            assert s.request("GET", f"/no/such/{i}")[0] == 404
        wanted = {("other", 404): 301}
        for _, _, _, route, status, n in asked[:-1]:
            wanted[route, status] = wanted.get((route, status), 0) + n

        def counts() -> dict[tuple[str, int], float]:
            samples = Page(s).samples
            return {(dict(labels)["route"], int(dict(labels)["status"])): v
                    for (n, labels), v in samples.items()
                    if n == "http_requests_total" and v and dict(labels)["route"] != "/metrics"}

        wait_for(lambda: counts() == wanted)
        p = Page(s)
        by_route: dict[str, float] = {}
        for (route, _), n in wanted.items():
            by_route[route] = by_route.get(route, 0) + n
        for route, n in by_route.items():
            assert p.get("http_request_duration_seconds_count", route=route) == n, route
            assert p.get("http_request_duration_seconds_sum", route=route) > 0, route
        assert p.get("http_requests_total", route="/metrics", status="200") >= 1


def a_client_that_leaves_is_counted_as_499() -> None:
    with serve() as s:
        body = {"prompt": [9] * 50, "max_tokens": 1500, "ignore_eos": True, "n": 16}
        client = s.open_raw(TEXT, body)
        wait_for(lambda: Page(s).get("vllm:num_requests_running") > 0)
        client.close()
        wait_for(lambda: Page(s).all("http_requests_total", route=TEXT, status="499") == [1])


# --- the process, and vLLM's names ---

def the_process_is_described_by_the_standard_names() -> None:
    began = time.time()
    with serve() as s:
        first = Page(s)
        s.post(TEXT, {"prompt": [9] * 200, "max_tokens": 100, "ignore_eos": True})
        p = Page(s)
        assert p.get("process_cpu_seconds_total") > first.get("process_cpu_seconds_total") >= 0
        pid = s.process.pid
        status = Path(f"/proc/{pid}/status").read_text()
        threads = int(status.split("Threads:")[1].split()[0])
        assert p.get("process_threads") == threads, (p.get("process_threads"), threads)
        rss = int(status.split("VmRSS:")[1].split()[0]) * 1024
        assert 0.5 < p.get("process_resident_memory_bytes") / rss < 2
        assert p.get("tarn:process_resident_bytes") == p.get("process_resident_memory_bytes")
        assert p.get("process_virtual_memory_bytes") > p.get("process_resident_memory_bytes")
        soft = Path(f"/proc/{pid}/limits").read_text().split("Max open files")[1].split()[0]
        assert p.get("process_max_fds") == int(soft)
        n_open = len(os.listdir(f"/proc/{pid}/fd"))  # less the connection that asked
        assert abs(p.get("process_open_fds") - n_open) <= 2, (p.get("process_open_fds"), n_open)
        start = p.get("process_start_time_seconds")
        assert began - 3 < start < time.time() + 3, (began, start)  # the boot time is in seconds
        build = p.labels("tarn:build_info")
        assert build["version"] and build["kernels"] and p.get("tarn:build_info") == 1, build


def parameters_and_answers_are_counted_as_vllm_does() -> None:
    with serve("--kv-cache-dtype", "int8") as s:
        s.post(TEXT, {"prompt": [9] * 8, "max_tokens": 4, "ignore_eos": True})
        s.post(TEXT, {"prompt": [[5] * 8, [6] * 8], "n": 3, "max_tokens": 7, "ignore_eos": True})
        wait_for(lambda: Page(s).get("vllm:request_params_n_count") == 3)
        p = Page(s)
        assert p.get("vllm:request_params_n_sum") == 1 + 3 + 3
        assert p.get("vllm:request_params_n_bucket", le="1") == 1
        assert p.get("vllm:request_params_n_bucket", le="5") == 3
        # Once for a prompt, however many answers it has: the longest.
        assert p.get("vllm:request_max_num_generation_tokens_count") == 3
        assert p.get("vllm:request_max_num_generation_tokens_sum") == 4 + 7 + 7
        cache = p.labels("vllm:cache_config_info")
        n_tokens = int(cache["num_gpu_blocks"]) * int(cache["block_size"])
        assert int(cache["kv_cache_size_tokens"]) == n_tokens > 0, cache
        assert float(cache["kv_cache_max_concurrency"]) > 0, cache
        assert cache["enable_prefix_caching"] == "True" and cache["cache_dtype"] == "int8", cache
        assert int(cache["kv_cache_memory_bytes"]) > 0 and cache["num_cpu_blocks"] == "0", cache


def odd_names_are_escaped() -> None:
    names = ['a"b', "a\\b\\", "a\nb", "ä€", 'x{le="1"} 1\nforged_total 9']
    for name in names:
        with serve("--served-model-name", name) as s:
            assert Page(s).labels("vllm:num_requests_running")["model_name"] == name
    with serve("--served-model-name", os.fsdecode(b"a\xffb")) as s:
        assert Page(s).labels("vllm:num_requests_running")["model_name"] == "a\ufffdb"


def main() -> int:
    global FOLDER, MODEL
    tests: list[Callable[[], None]] = [
        a_tenant_learns_nothing_of_another,
        without_an_admin_key_a_key_sees_its_own_lines,
        without_keys_only_this_machine_sees_metrics,
        requests_are_counted_by_route_and_status,
        a_client_that_leaves_is_counted_as_499,
        the_process_is_described_by_the_standard_names,
        parameters_and_answers_are_counted_as_vllm_does,
        odd_names_are_escaped,
    ]
    chosen = [t for t in tests if len(sys.argv) < 2 or t.__name__ in sys.argv[1:]]
    with tempfile.TemporaryDirectory() as folder:
        FOLDER = Path(folder)
        MODEL = make_model(folder)
        return run_tests(chosen)


if __name__ == "__main__":
    sys.exit(main())
