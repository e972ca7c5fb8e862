#!/usr/bin/env python3
"""The KV store from a user's view: GET and DELETE /cache, usage, metrics, cache_ttl, tarnctl.

TARN_TEST_MODEL names a model directory; without it a random one is made.
"""
from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable

from http_helpers import WAIT_SECONDS, Server, make_model, run_tests, tarn_server
import tarn_test

TEXT = "/v1/completions"
N_PROMPT = 320  # ten blocks
TIERS = ("device", "host")  # of these servers
NOWHERE = {"device": 0, "host": 0, "disk": 0}

MODEL: Path


def ask(s: Server, seed: int, **more: Any) -> dict[str, Any]:
    """Usage of a prompt that no other seed shares a block with."""
    ids = [7 + (i * (seed + 3) + seed) % 90 for i in range(N_PROMPT)]
    body = {"prompt": ids, "max_tokens": 1, "temperature": 0, "ignore_eos": True, **more}
    usage = s.post(TEXT, body)["usage"]
    details = usage["prompt_tokens_details"]
    assert details["cached_tokens"] == sum(details["cached_tokens_details"].values()), usage
    assert set(details["cached_tokens_details"]) == set(NOWHERE), usage
    return usage


def cached(s: Server, seed: int, **more: Any) -> dict[str, int]:
    return ask(s, seed, **more)["prompt_tokens_details"]["cached_tokens_details"]


def look(s: Server, path: str = "/cache") -> dict[str, Any]:
    status, _, body = s.request("GET", path)
    assert status == 200, body
    for tier in body["tiers"]:
        blocks = tier["blocks"]
        assert blocks["leaked"] == 0, body
        assert blocks["total"] == sum(blocks[k] for k in ("free", "cached", "in_use",
                                                          "in_transfer")), body
        assert tier["bytes"] == blocks["total"] * body["block_bytes"], body
    return body


def wait_for(s: Server, want: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        body = look(s)
        if want(body):
            return body
        assert time.monotonic() < deadline, body
        time.sleep(0.01)


def idle(body: dict[str, Any]) -> bool:
    return all(t["blocks"]["in_use"] == 0 for t in body["tiers"])


def small_store(s: Server) -> tuple[int, int]:
    """--kv-device-bytes and --kv-host-bytes for three and ten prompts of this test."""
    block = look(s)["block_bytes"]
    n = N_PROMPT // 32 + 1
    return 3 * n * block, 10 * n * block


# --- GET and DELETE ---

def the_store_is_described_in_full() -> None:
    with tarn_server(MODEL) as s:
        before = look(s)
        assert before["tokens"] == {"queried": 0, "hit": 0, "restored": 0, "hit_rate": None}
        assert before["top_spans"] == [] and before["tree"]["spans"] == 0, before
        assert [t["name"] for t in before["tiers"]] == ["device"], before
        assert cached(s, 1)["device"] == 0
        assert cached(s, 1)["device"] == N_PROMPT - 32
        body = wait_for(s, idle)
        assert body["object"] == "cache" and body["block_tokens"] == 32, body
        assert body["policy"] == "contest" and body["copies_failed"] == 0, body
        assert body["tiers"][0]["order"] in ("worth", "clock", "recency"), body
        assert body["tokens"]["hit"] == N_PROMPT - 32 == body["tiers"][0]["hit_tokens"], body
        rate = body["tokens"]["hit"] / body["tokens"]["queried"]
        assert abs(body["tokens"]["hit_rate"] - rate) < 1e-6, body
        assert body["tree"]["spans"] == len(body["top_spans"]) == 1, body
        span = body["top_spans"][0]
        assert len(span["key"]) == 64 and int(span["key"], 16) >= 0, span
        assert span["depth"] == 0 and span["tokens"] >= N_PROMPT, span
        assert span["blocks"] == span["blocks_by_tier"]["device"] >= N_PROMPT // 32, span
        assert span["uses"] == 2 and span["hit_tokens"] == N_PROMPT - 32, span
        assert not span["in_use"] and not span["held"] and span["idle_s"] >= 0, span
        assert body["tiers"][0]["nodes"] == body["tree"]["nodes"] >= 1, body
        assert body["tree"]["metadata_bytes"] > 0, body


def spans_come_as_asked_and_most_found_first() -> None:
    with tarn_server(MODEL) as s:
        for seed in range(5):
            for _ in range(seed + 1):
                ask(s, seed)
        body = look(s, "/cache?spans=3")
        found = [p["hit_tokens"] for p in body["top_spans"]]
        assert found == [k * (N_PROMPT - 32) for k in (4, 3, 2)], body
        assert body["tree"]["spans"] == 5, body
        assert look(s, "/cache?spans=0")["top_spans"] == []
        for wrong in ("257", "x", "-1", ""):
            status, _, answer = s.request("GET", f"/cache?spans={wrong}")
            assert status == 400 and answer["error"]["param"] == "spans", answer


def deleting_forgets_and_says_so() -> None:
    with tarn_server(MODEL) as s:
        ask(s, 1)
        n = wait_for(s, idle)["tiers"][0]["blocks"]["cached"]
        assert n >= N_PROMPT // 32
        status, _, body = s.request("DELETE", "/cache")
        assert status == 200 and body["cached_blocks"] == {**NOWHERE, "device": n}, body
        body = wait_for(s, idle)
        assert body["tiers"][0]["blocks"]["cached"] == 0 == body["tree"]["nodes"], body
        assert cached(s, 1) == NOWHERE
        assert s.request("POST", "/cache/reset")[0] == 404
        assert s.request("POST", "/cache")[0] == 405


def erasing_a_span_leaves_the_others() -> None:
    with tarn_server(MODEL) as s:
        keys = []
        for seed in (1, 2, 3):
            ask(s, seed)
            spans = wait_for(s, idle)["top_spans"]
            keys += [p["key"] for p in spans if p["key"] not in keys]
        assert len(keys) == 3, keys
        n = next(p for p in look(s)["top_spans"] if p["key"] == keys[1])["blocks"]
        status, _, body = s.request("DELETE", f"/cache?span={keys[1]}")
        assert status == 200, body
        assert body == {"object": "cache.erase", "status": "ok", "span": keys[1], "blocks": n}, body
        assert {p["key"] for p in look(s)["top_spans"]} == {keys[0], keys[2]}
        status, _, body = s.request("DELETE", f"/cache?span={keys[1]}")
        assert status == 404 and "no span has this key" in body["error"]["message"], body
        assert cached(s, 2) == NOWHERE
        assert cached(s, 1)["device"] == N_PROMPT - 32 == cached(s, 3)["device"]
        for wrong in ("span=", "span=00", f"span={keys[0]}0", f"spam={keys[0]}", "span"):
            assert s.request("DELETE", f"/cache?{wrong}")[0] == 400, wrong
        assert cached(s, 1)["device"] == N_PROMPT - 32


# --- tiers ---

def spilled_blocks_are_found_and_reported_in_host_memory() -> None:
    with tarn_server(MODEL) as s:
        device, host = small_store(s)
        plain = [s.post(TEXT, {"prompt": [9] * 40, "max_tokens": 8, "temperature": 0})]
    with tarn_server(MODEL, "--kv-device-bytes", str(device), "--kv-host-bytes", str(host)) as s:
        assert "Host KV cache size: " in s.first_lines
        for seed in range(8):
            assert cached(s, seed) == NOWHERE
        body = wait_for(s, idle)
        assert [t["name"] for t in body["tiers"]] == list(TIERS), body
        assert body["tiers"][1]["moved_in_blocks"] > 0 and body["tiers"][1]["nodes"] > 0, body
        assert any(p["blocks_by_tier"]["host"] for p in body["top_spans"]), body
        by_tier = [cached(s, seed) for seed in range(8)]
        total = {t: sum(c[t] for c in by_tier) for t in TIERS}
        assert total["host"] > 0 and sum(total.values()) == 8 * (N_PROMPT - 32), by_tier
        body = wait_for(s, idle)
        assert {t["name"]: t["hit_tokens"] for t in body["tiers"]} == total, (body, total)
        m = s.metrics()
        name = "tarn:prompt_tokens_by_tier_total"
        assert {t: m[f'{name}{{tier="{t}"}}'] for t in TIERS} == total, m
        assert m[f'{name}{{tier="computed"}}'] == 8 * (N_PROMPT + 32), m
        assert m['tarn:kv_blocks_moved_total{to="host"}'] > 0
        assert m['tarn:kv_blocks_moved_total{to="device"}'] > 0
        assert m["tarn:kv_copies_failed_total"] == 0
        again = s.post(TEXT, {"prompt": [9] * 40, "max_tokens": 8, "temperature": 0})
        assert again["choices"][0]["text"] == plain[0]["choices"][0]["text"]
        status, _, body = s.request("DELETE", "/cache")
        assert status == 200 and body["cached_blocks"]["host"] > 0, body
        assert cached(s, 0) == NOWHERE


def a_prompt_with_a_ttl_outlives_those_without() -> None:
    with tarn_server(MODEL) as s:
        device, _ = small_store(s)
    with tarn_server(MODEL, "--kv-device-bytes", str(device), "--kv-hold-share", "0.5",
                     "--cache-policy", "lru") as s:
        ask(s, 0, cache_ttl=600)
        ask(s, 1)
        body = wait_for(s, idle)
        assert body["tree"]["holds"] == 1, body
        assert N_PROMPT // 32 - 1 <= body["tree"]["held_blocks"] <= N_PROMPT // 32 + 1, body
        assert [p["held"] for p in body["top_spans"]].count(True) == 1, body
        assert s.metrics()["tarn:kv_held_blocks"] == body["tree"]["held_blocks"]
        for seed in range(2, 8):
            ask(s, seed)
        assert cached(s, 0)["device"] == N_PROMPT - 32
        assert cached(s, 1)["device"] == 0
        s.request("DELETE", "/cache")
        assert wait_for(s, idle)["tree"]["holds"] == 0
        ask(s, 0, cache_ttl=1)
        wait_for(s, lambda b: b["tree"]["holds"] == 1)
        wait_for(s, lambda b: b["tree"]["holds"] == 0)  # a second later


def a_bad_ttl_is_named() -> None:
    with tarn_server(MODEL) as s:
        for wrong in (-1, 86401, 1.5, "60", True, []):
            status, _, answer = s.request("POST", TEXT, {"prompt": "x", "cache_ttl": wrong})
            assert status == 400 and answer["error"]["param"] == "cache_ttl", (wrong, answer)


def without_prefix_caching_nothing_is_kept() -> None:
    with tarn_server(MODEL, "--no-enable-prefix-caching") as s:
        for _ in range(2):
            assert cached(s, 1, cache_ttl=60) == NOWHERE
        body = wait_for(s, idle)
        assert body["tiers"][0]["blocks"]["cached"] == 0 == body["tree"]["spans"], body
        assert body["tree"]["holds"] == 0, body


# --- tarnctl ---

def tarnctl_reads_and_forgets() -> None:
    with tarn_server(MODEL) as s:
        def ctl(*words: str) -> str:
            return subprocess.run([str(tarn_test.program("tarnctl")), "--url", s.url, *words],
                                  capture_output=True, text=True,
                                  timeout=tarn_test.patience(60), check=True).stdout
        for _ in range(2):
            ask(s, 1)
        body = wait_for(s, idle)
        table = ctl("cache")
        assert body["top_spans"][0]["key"][:12] in table, table
        assert f"{N_PROMPT - 32} found" in table and "\ndevice" in table, table
        assert json.loads(ctl("cache", "--json"))["fingerprint"] == body["fingerprint"]
        ask(s, 2)
        key = next(p["key"] for p in wait_for(s, idle)["top_spans"]
                   if p["key"] != body["top_spans"][0]["key"])
        assert ctl("cache", "erase", key[:12]).startswith("erased: a span and what was behind it")
        assert [p["key"] for p in look(s)["top_spans"]] == [body["top_spans"][0]["key"]]
        assert ctl("cache", "reset").startswith("forgotten: ")
        assert wait_for(s, idle)["tree"]["nodes"] == 0


def main() -> int:
    global MODEL
    with tempfile.TemporaryDirectory() as folder:
        MODEL = make_model(folder)
        return run_tests([
            the_store_is_described_in_full,
            spans_come_as_asked_and_most_found_first,
            deleting_forgets_and_says_so,
            erasing_a_span_leaves_the_others,
            spilled_blocks_are_found_and_reported_in_host_memory,
            a_prompt_with_a_ttl_outlives_those_without,
            a_bad_ttl_is_named,
            without_prefix_caching_nothing_is_kept,
            tarnctl_reads_and_forgets,
        ])


if __name__ == "__main__":
    sys.exit(main())
