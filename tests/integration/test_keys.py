#!/usr/bin/env python3
"""Keys, tenants, limits, logs and metrics of tarn-server, with a small random model.

TARN_TEST_MODEL names a model directory; without it a random one is made.
"""
from __future__ import annotations

import hashlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Callable

from exposition import check_exposition
from http_helpers import REPO, Server, make_model, run_tests, tarn_server, wait_until
from network_helpers import Net
import tarn_test

TEXT = "/v1/completions"
CHAT = "/v1/chat/completions"
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH")

FOLDER: Path
MODEL: Path
LONG_MODEL: Path


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def serve(*options: str, model: Path | None = None, env: dict[str, str] | None = None) -> Server:
    return tarn_server(model or MODEL, "--cache-dir", str(FOLDER / "cache"), "--threads", "2",
                       *options, env=env)


def key_file(keys: list[dict[str, Any]] | str, name: str = "keys.json", mode: int = 0o600) -> str:
    path = FOLDER / name
    temporary = path.with_suffix(".new")
    temporary.write_text(keys if isinstance(keys, str) else json.dumps({"keys": keys}))
    temporary.chmod(mode)
    temporary.rename(path)
    return str(path)


def wait_log(server: Server, words: str, times: int = 1) -> None:
    wait_until(lambda: server.log_text().count(words) >= times,
               lambda: f"{words!r} in {server.log_text()[-3000:]}")


def routes() -> list[tuple[str, str, bool, bool]]:
    """Method, path, open, admin: the rows of the server's own table."""
    text = (REPO / "server" / "api" / "route.c").read_text()
    order = re.findall(r"^ {4}bool (\w+);", text[text.index("struct route {"):], re.M)
    rows = re.findall(r'^ {4}\{"(\w+)", "([^"]+)", ((?:\w+, )+)\w+\},', text, re.M)
    assert len(rows) >= 10, "the table of routes looks different now: adapt this test"
    found = []
    for method, path, flags in rows:
        flag = dict(zip(order, [f == "true" for f in flags.split(", ")]))
        found.append((method, path + ("x" if flag["is_prefix"] else ""), flag["open"],
                      flag["admin"]))
    return found


# --- keys ---

def every_route_but_health_needs_a_key() -> None:
    keys = key_file([{"name": "filed", "key": "sk-filed-0001"}])
    all_paths = [p for _, p, _, _ in routes()] + ["/", "/nothing", "/openapi.json", "/v1", "//",
                                                  "/Health", "/healthx", "/health/", "/cache/x"]
    is_open = {p: o for _, p, o, _ in routes()}
    with serve("--api-key", "plain-key", "--api-key-file", keys, "--admin-api-key",
               "boss-key") as s:
        answers = set()
        for path in all_paths:
            for method in METHODS:
                for headers in ({}, bearer("wrong"), {"x-api-key": "plain-ke"}, bearer(""),
                                {"Authorization": "Basic plain-key"}, bearer("plain-key,boss-key")):
                    status, got, body = s.request(method, path, None, headers)
                    if is_open.get(path):
                        assert status != 401, (method, path)
                        continue
                    assert status == 401, (method, path, headers, status)
                    assert got["www-authenticate"] == "Bearer" and "allow" not in got, got
                    if method != "HEAD":
                        body.pop("request_id", None)
                        answers.add((path.startswith("/v1/messages"), json.dumps(body)))
        status, _, body = s.request("POST", TEXT, b" " * (33 << 20))
        assert status == 401, (status, body)  # not 413: that would tell a limit
        # Nothing about a path or a method can be told from the answers, whose form Anthropic's
        # paths have of their own.
        assert len(answers) == len({body for _, body in answers}) == 4, answers
        for path in all_paths:
            for key in ("plain-key", "sk-filed-0001", "boss-key"):
                for headers in (bearer(key), {"x-api-key": key}):
                    assert s.request("GET", path, None, headers)[0] != 401, (path, key)
        for method, path, _, admin in routes():
            for key in ("plain-key", "sk-filed-0001"):
                status, _, body = s.request(method, path, b"{}" if method == "POST" else None,
                                            bearer(key))
                assert (status == 403) == admin, (method, path, status, body)
                if admin:
                    assert body["error"]["code"] == "forbidden", body
                    assert "--admin-api-key" in body["error"]["message"], body
            status, _, body = s.request(method, path, b"{}" if method == "POST" else None,
                                        bearer("boss-key"))
            assert status not in (401, 403), (method, path, status, body)


def an_admin_key_alone_closes_everything() -> None:
    with serve("--admin-api-key", "boss-key") as s:
        assert s.request("GET", "/v1/models")[0] == 401
        assert s.request("GET", "/health")[0] == 200
        assert s.request("GET", "/cache", None, bearer("boss-key"))[0] == 200


def admin_routes_without_an_admin_key() -> None:
    with serve() as s:
        assert s.request("GET", "/cache")[0] == 200
        assert s.request("DELETE", "/cache")[0] == 200
    with serve("--host", "0.0.0.0") as s:
        status, _, body = s.request("GET", "/cache")
        assert status == 403 and "--admin-api-key" in body["error"]["message"], body
        assert s.request("DELETE", "/cache")[0] == 403
        assert s.request("GET", "/v1/models")[0] == 200
    with serve("--api-key", "plain-key") as s:
        status, _, body = s.request("GET", "/cache", None, bearer("plain-key"))
        assert status == 403 and "the server has none" in body["error"]["message"], body
        assert s.request("GET", "/cache")[0] == 401


def the_cache_can_be_read_and_forgotten() -> None:
    prompt = {"prompt": [7 + i % 90 for i in range(100)], "max_tokens": 2, "temperature": 0}
    with serve("--admin-api-key", "boss") as s:
        def cached() -> int:
            status, _, body = s.request("POST", TEXT, prompt, bearer("boss"))
            assert status == 200, body
            return int(body["usage"]["prompt_tokens_details"]["cached_tokens"])
        assert (cached(), cached()) == (0, 96)

        def cache() -> Any:
            return s.request("GET", "/cache", None, bearer("boss"))[2]
        # A request leaves the engine after its last token.
        wait_until(lambda: cache()["tiers"][0]["blocks"]["in_use"] == 0)
        stats = cache()
        blocks = stats["tiers"][0]["blocks"]
        assert blocks["cached"] >= 3 and blocks["leaked"] == 0, stats
        assert blocks["total"] == sum(blocks[k] for k in ("free", "cached", "in_use",
                                                          "in_transfer")), stats
        assert stats["tokens"]["hit"] == 96 and stats["block_tokens"] == 32, stats
        for _ in range(10):
            assert s.request("DELETE", "/cache", None, bearer("boss"))[0] == 200
            assert cached() == 0
        assert cached() == 96


# --- the key file ---

def a_bad_key_file_stops_the_start_with_all_its_mistakes() -> None:
    path = key_file([{"name": "a", "key": ""}, {"nmae": "b", "key": "sk-MARKER-01"},
                     {"name": "c", "key": "sk-MARKER-02", "weight": -1}])
    program = str(tarn_test.program("tarn-server"))
    done = subprocess.run([program, "--model", "/there/is/no/model", "--api-key-file", path],
                          capture_output=True, text=True,
                          timeout=tarn_test.patience(60), check=False)
    assert done.returncode == 1, done
    for words in ("keys[0].key: must not be empty", 'did you mean \\"name\\"?',
                  "keys[1].name: is missing", "keys[2].weight: -1 is outside", "4 mistakes"):
        assert words in done.stderr, (words, done.stderr)
    assert "MARKER" not in done.stderr, done.stderr
    done = subprocess.run([program, "--model", "x", "--api-key-file", "/there/is/none"],
                          capture_output=True, text=True,
                          timeout=tarn_test.patience(60), check=False)
    assert done.returncode == 1 and "No such file" in done.stderr, done


def sighup_reads_the_key_file_again() -> None:
    path = key_file([{"name": "a", "key": "sk-aaaaaaaa"}], mode=0o644)
    digest = hashlib.blake2b(b"sk-bbbbbbbb", digest_size=32).hexdigest()
    with serve("--api-key-file", path, "--admin-api-key", "boss-key") as s:
        def passes(key: str) -> bool:
            return s.request("GET", "/v1/models", None, bearer(key))[0] == 200
        assert "others may read or change it" in s.log_text()
        assert passes("sk-aaaaaaaa") and not passes("sk-bbbbbbbb")
        key_file([{"name": "a", "key": "sk-aaaaaaaa"}, {"name": "b", "key_blake2b": digest}])
        s.process.send_signal(signal.SIGHUP)
        wait_log(s, "keys loaded")
        assert passes("sk-aaaaaaaa") and passes("sk-bbbbbbbb")
        for n, bad in enumerate(("{", [{"name": "b"}, {"nam": "x"}], [])):
            key_file(bad)
            s.process.send_signal(signal.SIGHUP)
            wait_log(s, "keys not loaded, the old ones stay", times=n + 1)
            assert passes("sk-aaaaaaaa") and passes("sk-bbbbbbbb")
        for words in ("malformed JSON at line 1", "keys[0].key: is missing",
                      "keys[1].name: is missing", 'did you mean \\"name\\"?', "keys: is empty"):
            assert words in s.log_text(), words
        Path(path).unlink()
        s.process.send_signal(signal.SIGHUP)
        wait_log(s, "keys not loaded", times=4)
        key_file([{"name": "b", "key_blake2b": digest}])
        s.process.send_signal(signal.SIGHUP)
        wait_log(s, "keys loaded", times=2)
        assert passes("sk-bbbbbbbb") and not passes("sk-aaaaaaaa")
        status, _, text = s.request("GET", "/metrics", None, bearer("boss-key"))
        assert status == 200
        assert re.search(r'tarn:key_reloads_total\{[^}]*result="failed"\} 4\n', text), text
    with serve() as s: # without a key file SIGHUP does nothing
        s.process.send_signal(signal.SIGHUP)
        wait_log(s, "nothing to read again")
        assert s.request("GET", "/health")[0] == 200


# --- tenants ---

def tenants_share_nothing() -> None:
    path = key_file([{"name": "a1", "key": "sk-a1a1a1a1", "tenant": "a"},
                     {"name": "a2", "key": "sk-a2a2a2a2", "tenant": "a"},
                     {"name": "b", "key": "sk-bbbbbbbb", "tenant": "b"},
                     {"name": "own1", "key": "sk-own1own1"},
                     {"name": "own2", "key": "sk-own2own2"}])
    generator = random.Random(3)
    with serve("--api-key-file", path, "--api-key", "flag-1,flag-2", "--max-model-len", "8192",
               model=LONG_MODEL) as s:
        def run(key: str, prompt: list[int], **more: Any) -> int:
            status, _, body = s.request("POST", TEXT, {"prompt": prompt, "max_tokens": 1, **more},
                                        bearer(key))
            assert status == 200, body
            return body["usage"]["prompt_tokens_details"]["cached_tokens"]

        short = [generator.randrange(5, 200) for _ in range(200)]
        keys = ("sk-a1a1a1a1", "sk-bbbbbbbb", "sk-own1own1", "sk-own2own2", "flag-1", "flag-2")
        for key in keys:
            assert run(key, short) == 0, key
        for key in keys:
            assert run(key, short) == 192, key
        assert run("sk-a2a2a2a2", short) == 192  # the same tenant
        for key in ("sk-a1a1a1a1", "sk-bbbbbbbb"):
            assert run(key, short, cache_salt="s") == 0, key
        assert run("sk-a2a2a2a2", short, cache_salt="s") == 192
        assert run("sk-a2a2a2a2", short, cache_salt="t") == 0
        # test_isolation.py checks that times do not tell it either.


def scopes_outlive_the_process() -> None:
    secret = FOLDER / "cache" / "installation-secret"
    with serve():
        pass
    assert oct(secret.stat().st_mode & 0o7777) == "0o600" and secret.stat().st_size == 65
    before = secret.read_bytes()
    with serve():
        pass
    assert secret.read_bytes() == before
    with tarn_server(MODEL, env={"XDG_CACHE_HOME": str(FOLDER / "xdg")}):
        assert (FOLDER / "xdg" / "tarn" / "installation-secret").is_file()
    with tarn_server(MODEL, "--cache-dir", "/proc/nowhere") as s:
        assert "no installation secret" in s.log_text()


# --- limits ---

def wait_generated(server: Server, key: str, wanted: dict[str, int]) -> None:
    """An answer is charged a moment after its client has it."""
    def got() -> dict[str, float]:
        found = metrics_of(server, key)
        return {t: found[f'tarn:tenant_generation_tokens_total{{tenant="{t}"}}'] for t in wanted}
    wait_until(lambda: got() == wanted, lambda: (got(), wanted))


def limits_are_kept_per_key() -> None:
    path = key_file([{"name": "r", "key": "sk-rrrrrrrr", "requests_per_minute": 3},
                     {"name": "t", "key": "sk-tttttttt", "tokens_per_minute": 100},
                     {"name": "free", "key": "sk-ffffffff"}])
    # The clock of this server stands still: no bucket fills while a slow machine sends requests.
    with Net("--api-key-file", path, "--admin-api-key", "boss-key", has_test_clock=True) as s:
        def post(key: str, n_prompt: int, n_out: int = 1, where: str = TEXT,
                 **more: Any) -> tuple[int, dict[str, str], Any]:
            return s.request("POST", where, {"prompt": [9] * n_prompt, "max_tokens": n_out,
                                             "ignore_eos": True, **more}, bearer(key))

        for left in (2, 1, 0):
            status, headers, _ = post("sk-rrrrrrrr", 5, stream=left == 1)
            assert status == 200
            assert headers["x-ratelimit-limit-requests"] == "3", headers
            assert headers["x-ratelimit-remaining-requests"] == str(left), headers
            assert re.fullmatch(r"\d+(\.\d+)?s|\d+m\d+s", headers["x-ratelimit-reset-requests"])
            assert "x-ratelimit-limit-tokens" not in headers, headers
        for where in (TEXT, CHAT, "/tokenize"):
            status, headers, body = post("sk-rrrrrrrr", 5, where=where)
            assert status == 429 and body["error"]["code"] == "rate_limit_exceeded", body
            assert body["error"]["type"] == "rate_limit_error", body
            assert headers["retry-after"] == "20", headers
        assert s.request("GET", "/v1/models", None, bearer("sk-rrrrrrrr"))[0] == 200

        status, headers, _ = post("sk-tttttttt", 40, 30)
        assert status == 200
        assert headers["x-ratelimit-limit-tokens"] == "100", headers
        assert headers["x-ratelimit-remaining-tokens"] == "60", headers  # not yet the output
        wait_generated(s, "sk-tttttttt", {"t": 30})
        status, headers, body = post("sk-tttttttt", 80)  # 30 are left
        assert status == 429 and "tokens per minute" in body["error"]["message"], body
        assert headers["retry-after"] == "30", headers
        assert headers["x-ratelimit-remaining-tokens"] == "30", headers
        status, headers, body = post("sk-tttttttt", 101)
        assert status == 413 and "can never be admitted" in body["error"]["message"], body
        assert "retry-after" not in headers
        for _ in range(5):
            status, headers, _ = post("sk-ffffffff", 60)
            assert status == 200 and not any("ratelimit" in h for h in headers), headers
        _, _, text = s.request("GET", "/metrics", None, bearer("sk-rrrrrrrr"))
        assert re.search(r'tarn:tenant_rate_limited_total\{[^}]*tenant="r"\} 3\n', text), text
        for name, value in (('tarn:tenant_prompt_tokens_total{tenant="r"}', 15),
                            ('tarn:tenant_prompt_tokens_total{tenant="t"}', 40),
                            ('tarn:tenant_prompt_tokens_total{tenant="free"}', 300),
                            ('tarn:kv_blocks{state="in_use"}', 0)):
            wait_until(lambda: metrics_of(s, "boss-key")[name] == value)
        s.advance()  # by more than a minute: all buckets are full
        assert post("sk-rrrrrrrr", 5)[1]["x-ratelimit-remaining-requests"] == "2"
        assert post("sk-tttttttt", 80)[1]["x-ratelimit-remaining-tokens"] == "20"


# --- logs ---

def logs_hold_no_prompts_and_no_keys() -> None:
    path = key_file([{"name": "f", "key": "sk-MARKERKEY-file"}])
    marker = "xyzzymarker"

    def use(server: Server) -> None:
        for key in ("sk-MARKERKEY-file", "MARKERKEY-flag", "MARKERKEY-admin", "MARKERKEY-wrong"):
            for name in ("Authorization", "x-api-key"):
                head = {name: ("Bearer " if name[0] == "A" else "") + key}
                for body in ({"messages": [{"role": "user", "content": marker}], "max_tokens": 2},
                             {"messages": [{"role": marker, "content": marker}]},
                             b'{"messages": "' + marker.encode(),
                             {"messages": [{"role": "user", "content": marker}], "stream": True,
                              "max_tokens": 2, "unheard_of": marker, "cache_salt": marker}):
                    server.request("POST", CHAT, body, head)
                server.request("POST", TEXT, {"prompt": marker, "max_tokens": 2, "stop": marker},
                               head)
                server.request("POST", "/tokenize", {"prompt": marker}, head)
                server.request("GET", f"/v1/models?{marker}", None, head)
                server.request("GET", "/cache", None, head)

    options = ("--api-key", "MARKERKEY-flag", "--admin-api-key", "MARKERKEY-admin",
               "--api-key-file", path)
    for level in ("info", "debug"):
        for form in ("text", "json"):
            with serve(*options, "--log-level", level, "--log-format", form) as s:
                use(s)
                s.process.send_signal(signal.SIGHUP)
                wait_log(s, "keys loaded")
            text = s.log_text()
            assert "MARKERKEY" not in text and marker not in text, (level, form)
            assert text.count("n_prompt") >= 6 and ("tenant=f" in text or '"tenant":"f"' in text)
            if form == "json":
                assert all(json.loads(line) for line in text.splitlines())
                assert all(json.loads(line) for line in s.first_lines.splitlines())
    for level in ("info", "debug"):
        with serve(*options, "--log-level", level, "--log-prompts") as s:
            use(s)
        assert (marker in s.log_text()) == (level == "debug"), level
        assert "MARKERKEY" not in s.log_text()
    with serve(env={"TARN_API_KEY": "MARKERKEY-env", "TARN_ADMIN_API_KEY": "MARKERKEY-boss"}) as s:
        assert s.request("GET", "/v1/models", None, bearer("MARKERKEY-env"))[0] == 200
    assert "MARKERKEY" not in s.log_text()
    # The start line names every option, so it must be there to prove that the key is masked.
    assert 'api-key="***"' in s.log_text(), s.log_text()


def the_summary_line_is_vllms() -> None:
    # When it comes, and that an idle server is silent: tests/unit/server/test_summary.c.
    with serve() as s:
        s.post(TEXT, {"prompt": [9] * 100, "max_tokens": 50, "ignore_eos": True})
        wait_log(s, "Avg prompt throughput")
        lines = [line for line in s.log_text().splitlines() if "throughput" in line]
        assert len(lines) == 1, lines
        assert re.search(r"Engine 000: Avg prompt throughput: \d+\.\d tokens/s, "
                         r"Avg generation throughput: \d+\.\d tokens/s, Running: 0 reqs, "
                         r"Waiting: 0 reqs, GPU KV cache usage: \d+\.\d%, "
                         r"Prefix cache hit rate: \d+\.\d%$", lines[0]), lines[0]


# --- metrics ---

VLLM = {  # vLLM's metrics: name -> buckets, or None for a gauge or counter
    "vllm:num_requests_running": None, "vllm:num_requests_waiting": None,
    "vllm:kv_cache_usage_perc": None, "vllm:cache_config_info": None,
    "vllm:prompt_tokens_total": None, "vllm:prompt_tokens_cached_total": None,
    "vllm:prompt_tokens_by_source_total": None, "vllm:generation_tokens_total": None,
    "vllm:num_preemptions_total": None, "vllm:request_success_total": None,
    "vllm:prefix_cache_queries_total": None, "vllm:prefix_cache_hits_total": None,
    "vllm:admission_rejections_total": None,
    "vllm:spec_decode_num_drafts_total": None, "vllm:spec_decode_num_draft_tokens_total": None,
    "vllm:spec_decode_num_accepted_tokens_total": None,
    "vllm:spec_decode_num_accepted_tokens_per_pos_total": None,
    "vllm:time_to_first_token_seconds": ".001 .005 .01 .02 .04 .06 .08 .1 .25 .5 .75 1 2.5 5 7.5 "
                                        "10 20 40 80 160 640 2560",
    "vllm:inter_token_latency_seconds": ".01 .025 .05 .075 .1 .15 .2 .3 .4 .5 .75 1 2.5 5 7.5 10 "
                                        "20 40 80",
    "vllm:request_time_per_output_token_seconds": "= vllm:inter_token_latency_seconds",
    "vllm:e2e_request_latency_seconds": ".3 .5 .8 1 1.5 2 2.5 5 10 15 20 30 40 50 60 120 240 480 "
                                        "960 1920 7680",
    "vllm:request_queue_time_seconds": "= vllm:e2e_request_latency_seconds",
    "vllm:request_inference_time_seconds": "= vllm:e2e_request_latency_seconds",
    "vllm:request_prefill_time_seconds": "= vllm:e2e_request_latency_seconds",
    "vllm:request_decode_time_seconds": "= vllm:e2e_request_latency_seconds",
    "vllm:request_prompt_tokens": "1 2 5 10 20 50 100", "vllm:request_generation_tokens": "1 2 5",
    "vllm:request_params_max_tokens": "1 2 5 10 20 50 100",
    "vllm:request_prefill_kv_computed_tokens": "1 2 5 10 20",
    "vllm:request_max_num_generation_tokens": "1 2 5 10 20 50 100",
    "vllm:request_params_n": "1 2 5 10 20",
    "vllm:iteration_tokens_total": "1 8 16 32 64 128 256 512 1024 2048 4096 8192 16384",
}


def bounds(text: str, name: str) -> list[float]:
    found = re.findall(rf'^{name}_bucket\{{[^}}]*le="([^"+]+)"\}}', text, re.M)
    return [float(b) for b in found]


def metrics_are_well_formed_and_vllms() -> None:
    path = key_file([{"name": "a", "key": "sk-aaaaaaaa", "tenant": "red", "weight": 2.5,
                      "kv_bytes": "1G", "tokens_per_minute": 1000000},
                     {"name": "b", "key": "sk-bbbbbbbb"}])
    with serve("--api-key-file", path, "--admin-api-key", "boss-key", "--served-model-name",
               'odd "name\\') as s:
        for n, key in ((3, "sk-aaaaaaaa"), (1, "sk-bbbbbbbb")):
            for _ in range(n):
                assert s.request("POST", TEXT, {"prompt": [5] * 70, "max_tokens": 4,
                                                "ignore_eos": True}, bearer(key))[0] == 200
        wait_generated(s, "boss-key", {"red": 12, "b": 4})
        status, headers, text = s.request("GET", "/metrics", None, bearer("boss-key"))
        assert status == 200
        assert headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8", headers
        kinds = check_exposition(text)
        for name, want in VLLM.items():
            assert name in kinds, name
            if want is None:
                assert kinds[name] in ("gauge", "counter"), name
                continue
            # vLLM's histogram of steps is called _total: the one name that breaks the rule.
            assert kinds[name] == "histogram", name
            if want.startswith("= "):
                want = str(VLLM[want[2:]])
            numbers = [float(b) for b in want.split()]
            assert bounds(text, name)[:len(numbers)] == numbers, (name, bounds(text, name))
        assert 'model_name="odd \\"name\\\\",engine="0"' in text
        assert re.search(r'vllm:cache_config_info\{[^}]*block_size="32"[^}]*num_gpu_blocks="\d+"',
                         text)
        for name, tenant, value in (("requests", "red", 3), ("prompt_tokens", "red", 210),
                                    ("prompt_tokens_cached", "red", 128),
                                    ("generation_tokens", "red", 12), ("requests", "b", 1),
                                    ("prompt_tokens_cached", "b", 0)):
            assert re.search(rf'tarn:tenant_{name}_total\{{[^}}]*tenant="{tenant}"\}} {value}\n',
                             text), (name, tenant)
        assert re.search(r'tarn:key_weight\{[^}]*key="a",tenant="red"\} 2.5\n', text)
        assert re.search(r'tarn:key_kv_bytes\{[^}]*key="a",tenant="red"\} 1073741824\n', text)
        # Others see themselves, neither the whole nor each other.
        _, _, text = s.request("GET", "/metrics", None, bearer("sk-bbbbbbbb"))
        check_exposition(text)
        assert 'tenant="b"' in text and 'tenant="red"' not in text and 'key="a"' not in text
    with serve() as s:
        status, _, text = s.request("GET", "/metrics")
        check_exposition(text)
        assert 'tenant="default"' in text


def the_checker_finds_what_is_wrong() -> None:
    good = ('# HELP a_total x y\n# TYPE a_total counter\na_total{l="v\\""} 1\n'
            '# HELP h z\n# TYPE h histogram\nh_bucket{le="1"} 1\nh_bucket{le="+Inf"} 2\n'
            'h_sum 3.5\nh_count 2\n')
    check_exposition(good)
    for old, new in (("\na_total{", "\nb_total{"), ("counter", "thing"), ('"v\\""', '"v"x'),
                     (" 1\n#", "  1\n#"), ("a_total", "a-total"), ('le="1"} 1', 'le="1"} 3'),
                     ("h_count 2", "h_count 3"), ('le="+Inf"} 2\n', 'le="2"} 2\n'),
                     ("h_sum 3.5\n", ""), ("# TYPE h histogram\n", ""), ("a_total", "a"),
                     ("h_count 2\n", "h_count 2"), ("h_sum 3.5\n", "h_sum 3.5\n\n")):
        bad = good.replace(old, new)
        assert bad != good
        try:
            check_exposition(bad)
        except (AssertionError, KeyError, ValueError):
            continue
        raise AssertionError(f"not found: {old!r} -> {new!r}")


def metrics_of(server: Server, key: str) -> dict[str, float]:
    """As Server.metrics(), with a key."""
    status, _, text = server.request("GET", "/metrics", None, bearer(key))
    assert status == 200
    out = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            name = re.sub(r'model_name="(?:[^"\\]|\\.)*",engine="0",?', "", name)
            out[name.replace("{}", "")] = float(value)
    return out


def main() -> int:
    global FOLDER, MODEL, LONG_MODEL
    tests: list[Callable[[], None]] = [
        every_route_but_health_needs_a_key,
        an_admin_key_alone_closes_everything,
        admin_routes_without_an_admin_key,
        the_cache_can_be_read_and_forgotten,
        a_bad_key_file_stops_the_start_with_all_its_mistakes,
        sighup_reads_the_key_file_again,
        tenants_share_nothing,
        scopes_outlive_the_process,
        limits_are_kept_per_key,
        logs_hold_no_prompts_and_no_keys,
        the_summary_line_is_vllms,
        metrics_are_well_formed_and_vllms,
        the_checker_finds_what_is_wrong,
    ]
    chosen = [t for t in tests if len(sys.argv) < 2 or t.__name__ in sys.argv[1:]]
    with tempfile.TemporaryDirectory() as folder:
        FOLDER = Path(folder)
        os.environ.pop("XDG_CACHE_HOME", None)
        MODEL = make_model(folder)
        LONG_MODEL = make_model(str(FOLDER / "long"), "--max-pos", "8192", "--layers", "4",
                                "--dim", "128", "--ffn", "512")
        return run_tests(chosen)


if __name__ == "__main__":
    sys.exit(main())
