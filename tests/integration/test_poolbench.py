#!/usr/bin/env python3
"""loadgen/bench/pool on a small scale: workloads follow from the seed, ideal caches find what a
count by hand finds, KV events are read as they are written, the router forwards and counts, and two
policies have all figures. No time is checked."""
from __future__ import annotations

import argparse
import asyncio
import json
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "tests" / "tools"))
sys.path.insert(0, str(REPO / "loadgen" / "bench" / "pool"))
import tarn_test  # noqa: E402
import cpu_share  # noqa: E402
import kv_view  # noqa: E402
import oracle  # noqa: E402
import router  # noqa: E402
import show as show_module  # noqa: E402
import workloads  # noqa: E402

SHOW = REPO / "loadgen" / "bench" / "pool" / "show.py"
SIMULATED = REPO / "loadgen" / "bench" / "pool" / "simulated.py"
OWN = ["--documents", REPO / "loadgen" / "data" / "rag" / "documents.jsonl", "--questions",
       REPO / "loadgen" / "data" / "rag" / "questions.jsonl"]


def arguments(seed: int) -> argparse.Namespace:
    return argparse.Namespace(data=None, documents=OWN[1], questions=OWN[3], paragraphs=1, top_k=2,
                              requests=30, seed=seed, open_conversations=4, turn_words=20)


def a_seed_makes_one_workload() -> None:
    for make in workloads.WORKLOADS.values():
        one, two, other = (make(arguments(seed)).requests for seed in (1, 1, 2))
        assert one == two != other, make
    talks = workloads.conversations(arguments(1)).requests
    assert len(talks) == 45
    for i, one in enumerate(talks):  # a later turn continues an earlier one
        messages = one["messages"]
        if len(messages) > 2:
            assert any(messages[:-2] == t["messages"] for t in talks[:i]), i


def ideal_caches_find_what_a_count_by_hand_finds() -> None:
    a, b, c = ([n] * 96 for n in (1, 2, 3))  # three blocks; the last, whole one is always computed
    paths = oracle.Paths([a, b, a, c, a, b])
    assert paths.n_tokens == 6 * 96 and paths.distinct_tokens == 3 * 96
    assert paths.endless == 3 * 95 / (6 * 96)
    hit = 2 * 32 / (6 * 96)  # of one prompt
    assert abs(paths.best(6) - 3 * hit) < 1e-9
    assert abs(paths.best(2) - 2 * hit) < 1e-9  # a stays; b and c are in its way
    assert paths.lru(2) == 0
    assert abs(paths.lru(4) - 2 * hit) < 1e-9  # a b a: found; c drives b out; a found; b not
    assert abs(paths.lru(2, 3, lambda i: {0: 0, 1: 1, 2: 0, 3: 2, 4: 0, 5: 1}[i]) - 3 * hit) < 1e-9


def packed(value: object) -> bytes:
    """msgpack in the shortest forms."""
    if value is None:
        return b"\xc0"
    if isinstance(value, int):
        return bytes([value]) if value < 128 else b"\xcf" + struct.pack(">Q", value)
    if isinstance(value, float):
        return b"\xcb" + struct.pack(">d", value)
    if isinstance(value, str):
        return bytes([0xa0 | len(value)]) + value.encode()
    if isinstance(value, list):
        return b"\xdc" + struct.pack(">H", len(value)) + b"".join(map(packed, value))
    assert isinstance(value, dict)
    return bytes([0x80 | len(value)]) + b"".join(packed(k) + packed(v) for k, v in value.items())


def stored(hashes: list[int], parent: int | None, ids: list[int], medium: str = "GPU") -> dict:
    return {"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": parent,
            "token_ids": ids, "block_size": 2, "medium": medium}


def take(view: kv_view.KvView, number: int, *events: dict) -> None:
    view.take(number, packed([1.5, list(events), 0]))


def a_view_follows_the_events() -> None:
    view = kv_view.KvView()
    assert view.n_held([1, 2, 3, 4]) == 0
    take(view, 0, stored([2**63, 11], None, [1, 2, 3, 400]), stored([12], 2**63, [9, 9]))
    assert view.n_held([1, 2, 3, 400, 5]) == 4 and view.n_held([1, 2, 9, 9, 9]) == 4
    assert view.n_held([1, 2, 3, 4]) == 2 and view.n_held([2, 2]) == 0
    take(view, 1, stored([11], 2**63, [3, 400], "CPU"),
         {"type": "BlockRemoved", "block_hashes": [11, 12], "medium": "GPU"})
    assert view.n_held([1, 2, 3, 400]) == 4 and view.n_held([1, 2, 9, 9]) == 2
    take(view, 2, {"type": "BlockRemoved", "block_hashes": [11, 77], "medium": "CPU"})
    assert view.n_held([1, 2, 3, 400]) == 2 and view.n_blocks() == 1 and view.n_lost == 0
    take(view, 9, {"type": "AllBlocksCleared"})
    assert view.n_held([1, 2]) == 0 and view.n_blocks() == 0 and view.n_lost == 6


def requests_go_where_their_policy_says() -> None:
    instances = [router.Instance(f"http://127.0.0.1:{i}") for i in range(1, 5)]
    bodies = [json.dumps({"messages": [{"role": "system", "content": "all"},
                                       {"role": "user", "content": f"talk {i % 50}"},
                                       {"role": "user", "content": f"turn {i}"}]}).encode()
              for i in range(400)]

    async def choices(policy: str) -> list[int]:
        chosen = router.POLICIES[policy](instances)
        return [instances.index(await chosen.choose("/", b)) for b in bodies]
    turns = asyncio.run(choices("round-robin"))
    assert turns[:8] == [0, 1, 2, 3, 0, 1, 2, 3]
    hashed = asyncio.run(choices("hash"))
    assert hashed[:50] == hashed[50:100] and set(hashed) == {0, 1, 2, 3}


def an_instance_uses_no_more_than_its_share_of_processor_time() -> None:
    share, why_not = cpu_share.chosen_share(None, 4)
    assert cpu_share.chosen_share(0.0, 4) == (0.0, "")
    mounts_of, cpu_share.mounts_of = cpu_share.mounts_of, lambda kind: []
    nothing, words = cpu_share.chosen_share(0.4, 4)
    cpu_share.mounts_of = mounts_of
    assert nothing == 0.0 and "no cgroup file system" in words
    if why_not:
        assert share == 0.0 and "cgroup" in why_not
        print(f"not tested: {why_not}")
        return
    shares = cpu_share.CpuShares(2, 0.1)
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        shares.add(0, busy.pid)
        end = time.monotonic() + tarn_test.patience(20)
        while shares.waited()[0] == 0 and time.monotonic() < end:
            time.sleep(0.02)
        assert shares.waited()[0] > 0 and shares.waited()[1] == 0, shares.waited()
    finally:
        busy.kill()
        busy.wait()
        shares.close()
    assert not any(group.exists() for group in shares.groups)


def two_policies_have_all_figures() -> None:
    with tempfile.TemporaryDirectory(prefix="tarn-poolbench-") as name:
        file = Path(name, "out.json")
        done = subprocess.run([sys.executable, str(SHOW), "--requests", "16", "--parts",
                               "conversations", "--policies", "round-robin,hash", "--rate",
                               "50", "--cpu-share", "0", "--json", str(file), *map(str, OWN)],
                              capture_output=True, text=True,
                              timeout=tarn_test.patience(400), check=False)
        assert done.returncode == 0, done.stderr
        out = json.loads(file.read_text())
    part, n = out["conversations"], 24
    ideal = part["oracle"]
    assert ideal["lru_round_robin"] <= ideal["endless"] >= ideal["best_shared"] > 0
    for policy in ("round-robin", "hash"):
        for r in part["policies"][policy].values():
            assert r["completed"] == n and r["failed"] == r["refused"] == 0, r
            assert r["prompt_tokens"] == part["settings"]["prompt_tokens"], r
            assert 0 < r["computed_tokens"] <= r["prompt_tokens"]
            assert r["p50_ttft_s"] <= r["p99_ttft_s"] and r["requests_per_s"] > 0
            assert r["router"]["statuses"] == {"200": n}
            assert sum(r["router"]["requests"]) == n and r["router_busy"] > 0
            assert r["busiest"] >= 1 and r["switches_per_request"] > 0
    assert out["targets"] == []  # nothing is compared without the pool


def write_traces(data: Path) -> None:
    """A few requests in the formats of the two public traces."""
    mooncake, rag = data / "traces-mooncake", data / "traces-ragpulse"
    mooncake.mkdir(parents=True)
    rag.mkdir()
    (mooncake / "conversation_trace.jsonl").write_text("".join(json.dumps(
        {"timestamp": 1000 * i, "input_length": 1536, "output_length": 20,
         "hash_ids": [0, 1 + i % 3, 10 + i]}) + "\n" for i in range(40)))
    for number, name in enumerate(("1_sys_prompt", "2_passages", "3_history", "4_user_input",
                                   "5_web_search")):
        (rag / f"{name}.jsonl").write_text("".join(json.dumps(
            {"id": 10 * number + k, "token_length": 130}) + "\n" for k in range(5)))
    (rag / "0_trace.jsonl").write_text("".join(json.dumps(
        {"timestamp": str(i), "input_length": 500, "output_length": 20, "hash_ids": {
            "sys_prompt": [0, 1, 2 + i % 3], "passages_ids": [10 + i % 5, 11], "history": [],
            "web_search": [], "user_input": [30 + i % 5]}}) + "\n" for i in range(40)))


def simulated_pools_have_all_figures_and_are_not_run_twice() -> None:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "simulated.json"
        write_traces(Path(folder) / "data")
        command = [sys.executable, str(SIMULATED), "--quick", "--json", str(out), "--data",
                   str(Path(folder) / "data"), "--parts", "ladder-4,traces,scale,failure"]
        first = subprocess.run(command, capture_output=True, text=True, check=True)
        again = subprocess.run(command, capture_output=True, text=True, check=True)
        result = json.loads(out.read_text())
    assert first.stdout == again.stdout and not again.stderr, again.stderr
    ladder = result["ladder-4"]["policies"]
    for rate, pool in ladder["random, pool"].items():
        # Memory suffices, so a pool finds nearly all that a router with knowledge finds.
        assert pool["hit_share"] > 0.85 * ladder["precise"][rate]["hit_share"]
        assert pool["hit_share"] > ladder["random"][rate]["hit_share"]
        assert pool["remote_share"] > 0 == ladder["random"][rate]["remote_share"]
        assert pool["failed"] == 0
    assert result["traces"]["mooncake"]["hash"]["offered"]["access_cv"] > 2  # one of 8 has all
    assert result["failure"]["random, pool"]["one"]["failed"] == 0
    assert result["scale"]["mooncake"]["8"]["random, pool"]["offered"]["directory_commands"] > 0


def mistakes_are_answered_in_words() -> None:
    done = subprocess.run([sys.executable, str(SHOW), "--policies", "best"], capture_output=True,
                          text=True, check=False)
    assert done.returncode == 2 and "not one of" in done.stderr
    rows = show_module.targets_of({"rag": {"policies": {
        name: {"saturated": {"hit_share": hits, "requests_per_s": rate}}
        for name, hits, rate in (("round-robin", 0.1, 2.0), ("hash", 0.3, 1.0),
                                 ("pool", 0.295, 2.5))}}})
    assert [r["met"] for r in rows] == [True, True, True, True]


def main() -> None:
    tarn_test.program("tarn-server")
    for test in (a_seed_makes_one_workload, ideal_caches_find_what_a_count_by_hand_finds,
                 a_view_follows_the_events, requests_go_where_their_policy_says,
                 an_instance_uses_no_more_than_its_share_of_processor_time,
                 two_policies_have_all_figures,
                 simulated_pools_have_all_figures_and_are_not_run_twice,
                 mistakes_are_answered_in_words):
        test()
        print("ok:", test.__name__)


if __name__ == "__main__":
    main()
