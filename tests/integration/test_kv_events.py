#!/usr/bin/env python3
"""KV events and render endpoints: a router reconstructs exactly what the instance holds.

The router (kv_events_helpers.py) hashes token ids as llm-d's indexer does. Skipped where pyzmq or
msgpack cannot be had (venv_helpers.py), or where Tarn was built without them.
"""
from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Iterator

from http_helpers import Server, make_model, run_tests, tarn_server, wait_until
import tarn_test
from venv_helpers import use_venv

def make_adapter(model: Path, folder: str) -> str:
    made = str(Path(folder) / "adapter")
    subprocess.run([sys.executable, str(tarn_test.TOOLS / "make_tiny_adapter.py"), str(model),
                    made], check=True)
    return made


def make_files(folder: str) -> dict[str, str]:
    """The tools need NumPy, which the venv need not have: make the files with this Python."""
    model = make_model(folder)
    return {"TARN_TEST_MODEL": str(model), "TARN_TEST_ADAPTER": make_adapter(model, folder)}


with tempfile.TemporaryDirectory() as place:
    use_venv("zmq", "msgpack", env=lambda: make_files(place))
from kv_events_helpers import BLOCK, Router, block_keys  # noqa: E402

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
ADMIN = {"x-api-key": "boss-boss"}
N_PROMPT = 320  # ten of Tarn's blocks, twenty of the router's
TARN_BLOCK = 32
NO_DOCUMENTS = ("--documents-path", "none")

MODEL: Path


@contextmanager
def instance(*options: str, replay: bool = False) -> Iterator[tuple[Server, Router]]:
    """A server, and a router that has been told of everything."""
    with tempfile.TemporaryDirectory() as at:
        events, again = f"ipc://{at}/events", f"ipc://{at}/replay"
        more = ("--kv-events-replay-endpoint", again) if replay else ()
        with tarn_server(MODEL, *NO_DOCUMENTS, "--served-model-name", "tiny",
                         "--kv-events-endpoint", events, *more, *options) as s:
            router = Router(events, again)
            wait_until(lambda: router.read() > 0 and router.n_cleared > 0)
            try:
                yield s, router
            finally:
                router.close()


def prompt(seed: int, n: int = N_PROMPT) -> list[int]:
    return [7 + (i * (seed + 3) + seed) % 90 for i in range(n)]


def ask(s: Server, ids: Any, headers: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
    body = {"prompt": ids, "max_tokens": 1, "temperature": 0, "ignore_eos": True, **more}
    status, _, answer = s.request("POST", TEXT, body, headers)
    assert status == 200, answer
    return answer["usage"]


def cached(usage: dict[str, Any]) -> int:
    return usage["prompt_tokens_details"]["cached_tokens"]


def tiers(s: Server, headers: dict[str, str] | None = None) -> dict[str, int]:
    """Tarn's blocks that lie in each tier, by the router's name of it. -1 while any is moving."""
    status, _, body = s.request("GET", "/cache", None, headers)
    assert status == 200, body
    names = {"device": "GPU", "host": "CPU", "disk": "DISK"}
    still = all(t["blocks"]["in_use"] == 0 == t["blocks"]["in_transfer"] for t in body["tiers"])
    return {names[t["name"]]: t["blocks"]["cached"] if still else -1 for t in body["tiers"]}


def agree(s: Server, r: Router, headers: dict[str, str] | None = None) -> None:
    """Wait until the router counts what /cache counts. All prompts have whole blocks."""
    per_block = TARN_BLOCK // BLOCK

    def same() -> bool:
        r.read()
        return all(r.count(m) == per_block * n for m, n in tiers(s, headers).items())
    wait_until(same, lambda: f"{tiers(s, headers)}, {Counter_of(r)}, {r.events}")


def Counter_of(r: Router) -> dict[str, int]:
    return {m: r.count(m) for m in ("GPU", "CPU", "DISK")}


def expect_hit(s: Server, r: Router, ids: list[int], **more: Any) -> int:
    """Ask; the hit is what the router says: whole Tarn blocks, all but the one that is computed."""
    hit = r.hit_tokens(ids, more.get("cache_salt"))
    assert hit % TARN_BLOCK == 0, hit
    found = cached(ask(s, ids, **more))
    assert found == min(hit, len(ids) - TARN_BLOCK), (found, hit)
    return hit


# --- events ---

def a_router_knows_what_was_stored_and_reset() -> None:
    with instance() as (s, r):
        pod, port = r.topic.split("@")[1].split(":")
        assert pod == "127.0.0.1" and int(port) == s.port and r.topic.endswith("@tiny"), r.topic
        for seed in range(5):
            assert expect_hit(s, r, prompt(seed)) == 0
        agree(s, r)
        assert r.count("GPU") == 5 * N_PROMPT // BLOCK
        for seed in range(5):
            assert expect_hit(s, r, prompt(seed)) == N_PROMPT
        half = prompt(2)[:160] + prompt(99, 160)  # another branch
        assert r.hit_tokens(half) == 160
        assert expect_hit(s, r, half) == 160
        agree(s, r)
        assert s.metrics()["tarn:kv_events_blocks"] == len(r.held)
        assert s.request("DELETE", "/cache")[0] == 200
        agree(s, r)
        assert not r.held
        assert expect_hit(s, r, prompt(1)) == 0
        agree(s, r)


def evictions_and_tiers_are_followed() -> None:
    with tarn_server(MODEL, *NO_DOCUMENTS) as s:
        block = s.request("GET", "/cache")[2]["block_bytes"]
    with instance("--kv-device-bytes", str(33 * block), "--kv-host-bytes", str(55 * block)) as (
            s, r):
        for i in range(30):
            ids = prompt(i * 7 % 12)
            agree(s, r)
            expect_hit(s, r, ids)
        agree(s, r)
        assert r.count("CPU") > 0 and r.events["BlockRemoved"] > 0


def salts_and_tenants_do_not_mix() -> None:
    with instance() as (s, r):
        ids = prompt(1)
        ask(s, ids, cache_salt="pepper")
        agree(s, r)
        assert r.hit_tokens(ids) == 0
        assert r.hit_tokens(ids, "salt") == 0
        assert expect_hit(s, r, ids, cache_salt="pepper") == N_PROMPT
        assert expect_hit(s, r, ids) == 0
        agree(s, r)
        assert len(r.held) == 2 * N_PROMPT // BLOCK
        assert set(block_keys("tiny", ids)) < r.keys()


def blocks_of_adapters_have_their_name() -> None:
    with tempfile.TemporaryDirectory() as at:
        adapter = os.environ.get("TARN_TEST_ADAPTER") or make_adapter(MODEL, at)
        with instance("--lora-modules", f"red={adapter}") as (s, r):
            ids = prompt(1)
            ask(s, ids, model="red")
            ask(s, prompt(2), model="red", cache_salt="pepper")
            agree(s, r)
            assert r.hit_tokens(ids) == 0
            assert r.keys() == {*block_keys("tiny", ids, None, "red"),
                                *block_keys("tiny", prompt(2), "pepper", "red")}
            assert expect_hit(s, r, ids) == 0
            agree(s, r)
            assert r.hit_tokens(ids) == N_PROMPT


def tenants_share_a_block_until_the_last_copy_goes() -> None:
    with tempfile.TemporaryDirectory() as at:
        keys = Path(at) / "keys.json"
        keys.write_text(json.dumps({"keys": [{"name": n, "key": f"sk-{n}-1234", "tenant": n}
                                             for n in ("ann", "bob")]}))
        with instance("--api-key-file", str(keys), "--admin-api-key", "boss-boss") as (s, r):
            for name in ("ann", "bob"):
                assert cached(ask(s, prompt(1), {"x-api-key": f"sk-{name}-1234"})) == 0
            wait_until(lambda: tiers(s, ADMIN)["GPU"] == 2 * N_PROMPT // TARN_BLOCK)
            r.read()
            assert len(r.held) == N_PROMPT // BLOCK
            assert r.hit_tokens(prompt(1)) == N_PROMPT
            span = s.request("GET", "/cache", None, ADMIN)[2]["top_spans"][0]["key"]
            assert s.request("DELETE", f"/cache?span={span}", None, ADMIN)[0] == 200
            wait_until(lambda: tiers(s, ADMIN)["GPU"] == N_PROMPT // TARN_BLOCK)
            r.read()
            assert r.hit_tokens(prompt(1)) == N_PROMPT  # the other tenant's


def a_router_that_restarts_is_told_again() -> None:
    with instance(replay=True) as (s, r):
        for seed in range(3):
            ask(s, prompt(seed))
        agree(s, r)
        other = Router(r.socket.LAST_ENDPOINT.decode(), r.replay)
        for sequence, payload in other.ask_again(0):
            other.topic = r.topic
            other.take(sequence, payload)
        assert other.key_of == {h: r.key_of[h] for h in r.key_of} and other.held == r.held
        late = other.ask_again(other.next)
        assert late == [] or [n for n, _ in late][0] == other.next
        # Its subscription has everything sent again, to all.
        other.next = None
        other.forget()
        n = r.n_cleared
        wait_until(lambda: r.read() >= 0 and r.n_cleared > n)
        other.n_cleared = 0
        wait_until(lambda: other.read() >= 0 and other.n_cleared > 0 and other.held == r.held)
        ask(s, prompt(9))
        agree(s, r)
        agree(s, other)
        assert r.held == other.held
        metrics = s.metrics()
        assert metrics["tarn:kv_events_replays_total"] == 2
        assert metrics["tarn:kv_events_repeats_total"] >= 2
        other.close()


def documents_divide_blocks_but_not_a_routers() -> None:
    with instance() as (s, r):
        documents = [{"title": f"t{i}", "text": f"document {i} " * (5 + 3 * i)} for i in range(4)]

        def chat(question: str, listed: list[dict[str, str]]) -> tuple[list[int], int]:
            body = {"messages": [{"role": "user", "content": question}], "max_tokens": 1,
                    "documents": listed}
            ids = s.post(CHAT + "/render", body)["token_ids"]
            answer = s.post(CHAT, {**body, "return_token_ids": True})
            assert answer["usage"]["prompt_tokens"] == len(ids)
            of_choice = answer["choices"][0].get("prompt_token_ids")
            assert answer.get("prompt_token_ids", of_choice) == ids
            return ids, cached(answer["usage"])
        first, hit = chat("Why is it so?", documents)
        assert hit == 0
        wait_until(lambda: r.read() >= 0 and len(r.held) > 0
                   and tiers(s)["GPU"] >= 0 and r.read() == 0)
        for question, listed in (("How?", documents), ("Why is it so?", documents[:2]),
                                 ("Where?", documents[::-1])):
            ids = s.post(CHAT + "/render", {"messages": [{"role": "user", "content": question}],
                                            "documents": listed})["token_ids"]
            expected = r.hit_tokens(ids)
            shared = next((i for i, (a, b) in enumerate(zip(ids, first)) if a != b), len(ids))
            assert expected <= shared
            _, hit = chat(question, listed)
            assert hit - BLOCK - TARN_BLOCK < expected < hit + BLOCK, (expected, hit)
            r.read(300)


# --- render ---

def rendering_is_what_the_endpoint_computes() -> None:
    with tarn_server(MODEL, *NO_DOCUMENTS) as s:
        messages = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi!"}]
        for path, body in ((CHAT, {"messages": messages}), (TEXT, {"prompt": "once upon a time"}),
                           (TEXT, {"prompt": ["a", [5, 6, 7]]}),
                           (TEXT, {"prompt": "x", "add_special_tokens": False})):
            rendered = s.post(path + "/render", body)
            rendered = rendered if isinstance(rendered, list) else [rendered]
            answer = s.post(path, {**body, "max_tokens": 1, "return_token_ids": True})
            assert answer["usage"]["prompt_tokens"] == sum(len(p["token_ids"]) for p in rendered)
            given = [c.get("prompt_token_ids", answer.get("prompt_token_ids"))
                     for c in answer["choices"]]
            assert given == [p["token_ids"] for p in rendered], answer
        steps = s.metrics()["tarn:steps_total"]
        s.post(CHAT + "/render", {"messages": messages, "stream": True})
        assert s.metrics()["tarn:steps_total"] == steps
        assert s.metrics()["tarn:kv_events_batches_total"] == 0


# --- off by default ---

def nothing_is_published_unless_asked_for() -> None:
    def sockets(s: Server) -> int:
        lines = Path(f"/proc/{s.process.pid}/net/tcp").read_text().splitlines()
        inodes = {f"socket:[{line.split()[9]}]" for line in lines[1:] if line.split()[3] == "0A"}
        links = Path(f"/proc/{s.process.pid}/fd").iterdir()
        return sum(str(link.readlink()) in inodes for link in links)
    with tarn_server(MODEL, *NO_DOCUMENTS) as s:
        ask(s, prompt(1))
        assert sockets(s) == 1 and "KV events" not in s.log_text()
    port = tarn_test.free_port()
    with tarn_server(MODEL, *NO_DOCUMENTS, "--kv-events-endpoint", f"tcp://*:{port}") as s:
        assert sockets(s) == 2 and "only routers may reach their sockets" in s.log_text()


def wrong_endpoints_are_refused_by_name() -> None:
    for options, words in ((("--kv-events-replay-endpoint", "ipc:///tmp/x"),
                            "--kv-events-endpoint"),
                           (("--kv-events-endpoint", "no such thing"), "--kv-events-endpoint"),
                           (("--kv-events-endpoint", "ipc:///tmp/x", "--no-prefix-caching"),
                            "--kv-events-endpoint"),
                           (("--router-objectives", "a=1"), "--trust-router-headers"),
                           (("--trust-router-headers", "--router-objectives", "a"),
                            "--router-objectives")):
        done = subprocess.run([str(tarn_test.program("tarn-server")), "--model", str(MODEL),
                               *options], capture_output=True, text=True,
                               timeout=tarn_test.patience(60))
        assert done.returncode == 1 and words in done.stderr, done


def main() -> int:
    global MODEL
    with tempfile.TemporaryDirectory() as at:
        MODEL = make_model(at)
        return run_tests([a_router_knows_what_was_stored_and_reset,
                          evictions_and_tiers_are_followed,
                          salts_and_tenants_do_not_mix,
                          blocks_of_adapters_have_their_name,
                          tenants_share_a_block_until_the_last_copy_goes,
                          a_router_that_restarts_is_told_again,
                          documents_divide_blocks_but_not_a_routers,
                          rendering_is_what_the_endpoint_computes,
                          nothing_is_published_unless_asked_for,
                          wrong_endpoints_are_refused_by_name])


if __name__ == "__main__":
    sys.exit(main())
