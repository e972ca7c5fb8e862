#!/usr/bin/env python3
"""Query shipping from a user's view: instances of a pool leave KV where it is and send queries to
it. Every answer must equal that of one instance alone, bit for bit, also when the instance that is
asked is killed, stopped or silent in the middle of an answer.

    test_pool_query.py [--short] [--seed 1] [NAME...]
"""
from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable

from http_helpers import TIMEOUT, WAIT_SECONDS, Server, run_tests, wait_until
from pool_harness import (BLOCK, TEXT, Instance, Pool, Proxy, Reference, need_pool, pool_model,
                          prompt_of, remote)

SEGMENT = 8 * BLOCK
N_REMOTE = SEGMENT  # of prompt_of(): whole segments only
QUERY_MS = 2000
HELD_BYTES = 6_000  # of answers, before they stop: tiles of some KB each
OPTIONS = ("--pool-transport", "tcp", "--pool-query", "always", "--pool-query-ms", str(QUERY_MS),
           "--pool-lookup-ms", "5000", "--pool-pull-ms", "5000")
LONG_PROMPT = prompt_of(77, 12 * 8 + 2)  # spread over three lenders of four segments
SAMPLED = {"temperature": 0.8, "top_p": 0.9, "seed": 11}

MODEL: Path
REFERENCE: "Answers"
SEED = 1


def ask_more(s: Server, ids: list[int], n: int = 4, **more: Any) -> tuple[tuple, dict[str, int]]:
    """As ask() of the harness, with further fields."""
    status, _, answer = s.request("POST", TEXT, {
        "prompt": ids, "max_tokens": n, "temperature": 0, "ignore_eos": True,
        "return_token_ids": True, "logprobs": 1, **more})
    assert status == 200, (status, answer)
    choice, details = answer["choices"][0], answer["usage"]["prompt_tokens_details"]
    assert details["cached_tokens"] == sum(details["cached_tokens_details"].values()), details
    return ((tuple(choice["token_ids"]), tuple(choice["logprobs"]["token_logprobs"])),
            details["cached_tokens_details"])


class Answers(Reference):
    """Answers of one instance alone, for any fields."""

    def __init__(self, model: Path, folder: str) -> None:
        super().__init__(model, folder)
        self.known: dict[tuple, tuple] = {}
        self.lock = threading.Lock()

    def check_more(self, answer: tuple, ids: list[int], n: int = 4, **more: Any) -> None:
        key = (tuple(ids), n, tuple(sorted(more.items())))
        with self.lock:
            if key not in self.known:
                self.known[key] = ask_more(self.server, ids, n, **more)[0]
        assert answer == self.known[key], (answer, self.known[key])


def check(s: Server, ids: list[int], n: int = 4, **more: Any) -> dict[str, int]:
    answer, tiers = ask_more(s, ids, n, **more)
    REFERENCE.check_more(answer, ids, n, **more)
    return tiers


def two(pool: Pool, *options: str) -> tuple[Instance, Instance]:
    a, b = pool.start(0, *OPTIONS, *options), pool.start(1, *OPTIONS, *options)
    pool.wait()
    return a, b


def n_queried(s: Instance) -> float:
    return s.metrics()['tarn:pool_sequences_total{way="query"}']


def nothing_is_lent(*instances: Instance) -> None:
    for s in instances:
        wait_until(lambda: s.metric("tarn:pool_lent_blocks") == 0, lambda: "a lease never ends")


# --- two and three instances ---

def queries_give_the_tokens_of_one_instance() -> None:
    with Pool(MODEL) as pool:
        a, b = two(pool)
        pool.compute(a, range(3))
        for seed, more in ((0, {}), (1, SAMPLED), (2, {"echo": True})):
            tiers = check(b, prompt_of(seed), 6, **more)
            assert remote(tiers) == (0 if "echo" in more else N_REMOTE), tiers
        assert n_queried(b) == 2 and b.metric("tarn:pool_pulled_blocks_total") == 0
        # The pool threads publish their counts now and then.
        wait_until(lambda: a.metric("tarn:pool_attended_total") ==
                   b.metric("tarn:pool_queries_total") >= 2 * 6 * 4, b.metrics)
        assert b.metric("tarn:pool_queries_failed_total") == 0
        assert a.metric("tarn:pool_attended_rows_total") > 0
        assert b.metric("tarn:pool_query_bytes_total") > 0
        assert b.metrics()['tarn:prompt_tokens_by_tier_total{tier="remote"}'] == 2 * N_REMOTE
        nothing_is_lent(a, b)


def a_local_prefix_comes_before_the_remote_part() -> None:
    """The prefix ends inside a segment: the rest of that segment is read, the others queried."""
    with Pool(MODEL) as pool:
        a, b = two(pool)
        ids = prompt_of(5, 26)
        check(b, ids[:11 * BLOCK + 1])
        ask_more(a, ids, cache_ttl=60)  # what is to be held is read, and computed behind that
        wait_until(lambda: pool.n_segments() >= 4, pool.n_segments)
        tiers = check(b, ids, 5, **SAMPLED)
        assert tiers["device"] == 11 * BLOCK and remote(tiers) == 13 * BLOCK, tiers
        wait_until(lambda: b.metric("tarn:pool_pulled_blocks_total") == 5, b.metrics)
        assert n_queried(b) == 1
        nothing_is_lent(a, b)


def three_lenders(pool: Pool, proxied: bool = False) -> tuple[list[Instance], list[Any], Instance]:
    """Three instances that have the KV of LONG_PROMPT, and one that has nothing."""
    lenders, proxies = [], []
    for i in range(3):
        if proxied:
            s, proxy = pool.start_behind_proxy(i, *OPTIONS)
            proxies.append(proxy)
        else:
            s = pool.start(i, *OPTIONS)
        lenders.append(s)
    asker = pool.start(3, *OPTIONS)
    pool.wait()
    for s in lenders:  # what is to be held is read from the first one
        ask_more(s, LONG_PROMPT, cache_ttl=60)
    wait_until(lambda: pool.n_segments() >= 12, pool.n_segments)
    return lenders, proxies, asker


def a_long_prefix_is_queried_at_three_lenders() -> None:
    with Pool(MODEL) as pool:
        lenders, _, asker = three_lenders(pool)
        # A holder is known once it has announced what it read: ask again until all three are.
        end = time.monotonic() + WAIT_SECONDS
        while True:
            tiers = check(asker, LONG_PROMPT, 5)
            assert remote(tiers) == 12 * SEGMENT, tiers
            time.sleep(0.2)  # the pool threads publish their counts now and then
            if all(s.metric("tarn:pool_attended_total") > 0 for s in lenders):
                break
            assert time.monotonic() < end, [s.metrics() for s in lenders]
        assert asker.metric("tarn:pool_queries_failed_total") == 0
        assert asker.metric("tarn:pool_pulled_blocks_total") == 0
        nothing_is_lent(asker, *lenders)


def what_others_query_often_is_copied_to_them() -> None:
    with Pool(MODEL) as pool:
        a, b, c = (pool.start(i, *OPTIONS) for i in range(3))
        pool.wait()
        pool.compute(a, range(1))
        end = time.monotonic() + WAIT_SECONDS
        while not a.metrics()['tarn:pool_copies_total{result="copied"}']:
            assert time.monotonic() < end, a.metrics()
            for s in (b, c):
                check(s, prompt_of(0), 40)
        tiers: list[dict[str, int]] = []
        wait_until(lambda: tiers.extend(check(s, prompt_of(0)) for s in (b, c)) or  # type: ignore
                   any(t["device"] >= N_REMOTE for t in tiers), lambda: tiers)
        assert a.metric("tarn:pool_accessed_tokens_total") > 8 * N_REMOTE
        check(a, prompt_of(0))
        nothing_is_lent(a, b, c)


def a_lender_of_three_killed_in_mid_answer_changes_no_token() -> None:
    with Pool(MODEL) as pool:
        lenders, proxies, asker = three_lenders(pool, proxied=True)
        check(asker, LONG_PROMPT, 2)
        victim = max(range(3), key=lambda i: proxies[i].n_bytes("down"))
        proxies[victim].hold_after(HELD_BYTES)
        with ThreadPoolExecutor(1) as threads:
            done = threads.submit(check, asker, LONG_PROMPT, 30)
            assert proxies[victim].is_holding.wait(WAIT_SECONDS), "no answer began"
            lenders[victim].kill()
            proxies[victim].release(True)
            done.result()
        assert asker.metrics()['tarn:preemptions_total{reason="query"}'] > 0
        nothing_is_lent(asker, *(s for i, s in enumerate(lenders) if i != victim))


def instances_query_each_other_in_mixed_batches() -> None:
    """Ordinary sequences, and sequences that query two other instances, run together."""
    with Pool(MODEL) as pool:
        all_ = [pool.start(i, *OPTIONS) for i in range(3)]
        pool.wait()
        for i, s in enumerate(all_):
            pool.compute(s, range(i * 2, i * 2 + 2))
        jobs = [(s, prompt_of(seed) + [7 + k], 3 + seed, more)
                for k, s in enumerate(all_) for seed in range(8) for more in ({}, SAMPLED)]
        random.Random(SEED).shuffle(jobs)
        with ThreadPoolExecutor(9) as threads:
            done = [threads.submit(check, s, ids, n, **more) for s, ids, n, more in jobs]
            tiers = [d.result() for d in done]
        assert sum(remote(t) for t in tiers) > 0
        assert all(n_queried(s) > 0 for s in all_)
        wait_until(lambda: all(s.metric("tarn:pool_attended_total") > 0 for s in all_),
                   lambda: [s.metrics() for s in all_])
        nothing_is_lent(*all_)


def preempted_sequences_query_again() -> None:
    """Little memory: sequences that query are preempted, lose their own KV, and go on."""
    with Pool(MODEL) as pool:
        a = pool.start(0, *OPTIONS)
        b = pool.start(1, *OPTIONS, "--kv-device-bytes", "1M", "--max-model-len", "448",
                       "--scheduling-policy", "mlfq")  # 16 blocks
        pool.wait()
        pool.compute(a, range(4))
        with ThreadPoolExecutor(8) as threads:
            done = [threads.submit(check, b, prompt_of(seed) + [9] * seed, 90) for seed in range(4)
                    for _ in range(2)]
            for d in done:
                d.result()
        assert b.metric("vllm:num_preemptions_total") > 0 and n_queried(b) > 8
        nothing_is_lent(a, b)


def an_instance_that_leaves_hands_its_own_kv_to_the_lender() -> None:
    """SIGTERM while an answer is computed behind KV that stays on the other instance."""
    with Pool(MODEL) as pool:
        a, b = two(pool)
        pool.compute(a, range(2))
        check(b, prompt_of(0), 2)  # the way there is known
        ids, n = prompt_of(1), 20 * BLOCK
        with ThreadPoolExecutor(1) as threads:
            done = threads.submit(ask_more, b, ids, n)
            wait_until(lambda: a.metric("tarn:pool_attended_total") > 20, a.metrics)
            b.process.send_signal(signal.SIGTERM)
            answer, tiers = done.result()
        REFERENCE.check_more(answer, ids, n)
        assert remote(tiers) == N_REMOTE, tiers
        assert b.process.wait(WAIT_SECONDS) == 0
        b.end()
        pool.instances.remove(b)
        tiers = check(a, ids + list(answer[0]), 2)
        # The last token's KV was never computed, and only closed blocks are handed over.
        assert tiers["device"] == (len(ids) + n - 1) // BLOCK * BLOCK, tiers


def cancelled_requests_give_their_leases_back() -> None:
    with Pool(MODEL) as pool:
        a, b = two(pool)
        pool.compute(a, range(4))
        for seed in range(4):
            connection = b.connection()
            connection.request("POST", TEXT, stream_body(prompt_of(seed)),
                               {"Content-Type": "application/json"})
            answer = connection.getresponse()
            assert answer.status == 200 and answer.readline()
            connection.close()
        nothing_is_lent(a, b)
        wait_until(lambda: b.metric("vllm:num_requests_running") == 0, b.metrics)
        assert b.metrics()['tarn:kv_blocks{state="in_use"}'] == 0
        assert remote(check(b, prompt_of(0))) == N_REMOTE


def stream_body(ids: list[int]) -> str:
    return ('{"prompt":%s,"max_tokens":900,"temperature":0,"ignore_eos":true,"stream":true}'
            % list(ids))


# --- faults ---

def during_answers(pool: Pool, fault: Callable[[Instance, Proxy], None], is_losing: bool = False
                   ) -> tuple[Instance, Instance]:
    """Sequences of b query a, and the fault begins in the middle of an answer. The rest of that
    answer, which the proxy may have read already, comes later, or is lost."""
    a, proxy = pool.start_behind_proxy(0, *OPTIONS)
    b = pool.start(1, *OPTIONS)
    pool.wait()
    pool.compute(a, range(3))
    check(b, prompt_of(9))
    assert remote(check(b, prompt_of(0))) == N_REMOTE
    proxy.hold_after(HELD_BYTES)
    with ThreadPoolExecutor(4) as threads:
        done = [threads.submit(check, b, prompt_of(seed), 30) for seed in (0, 1, 2, 9)]
        assert proxy.is_holding.wait(WAIT_SECONDS), "no answer began"
        fault(a, proxy)
        proxy.release(is_losing)
        began = time.monotonic()
        for d in done:
            d.result()
        assert time.monotonic() - began < TIMEOUT
    wait_until(lambda: b.metric("tarn:pool_queries_failed_total") > 0, b.metrics)
    assert b.metrics()['tarn:preemptions_total{reason="query"}'] > 0
    return a, b


def a_peer_killed_in_mid_answer_changes_no_token() -> None:
    with Pool(MODEL) as pool:
        _, b = during_answers(pool, lambda a, _: a.kill(), is_losing=True)
        assert remote(check(b, prompt_of(1))) == 0


def a_peer_stopped_in_mid_answer_changes_no_token() -> None:
    with Pool(MODEL) as pool:
        a, b = during_answers(pool, lambda a, _: a.process.send_signal(signal.SIGSTOP))
        a.process.send_signal(signal.SIGCONT)
        nothing_is_lent(a, b)
        is_queried_again(pool, a, b)


def is_queried_again(pool: Pool, a: Instance, b: Instance) -> None:
    """A peer that was away is asked again after a while."""
    end = time.monotonic() + WAIT_SECONDS
    seed = 20
    while True:
        pool.compute(a, range(seed, seed + 1))
        if remote(check(b, prompt_of(seed))):
            return
        seed += 1
        assert time.monotonic() < end, b.metrics()


def a_lying_peer_changes_no_token() -> None:
    """Bits of answers flip on the way: tiles have a checksum."""
    rng = random.Random(SEED)

    def flip(way: str, at: int, data: bytes) -> bytes:
        broken = bytearray(data)
        if way == "down":
            broken[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        return bytes(broken)

    def lie(_: Instance, proxy: Proxy) -> None:
        proxy.alter = flip

    with Pool(MODEL) as pool:
        during_answers(pool, lie)


def random_faults_change_no_token() -> None:
    """The peer dies or stops while prompts with common beginnings are asked."""
    rng = random.Random(SEED)
    with Pool(MODEL) as pool, ThreadPoolExecutor(4) as threads:
        hosts = [pool.start(i, *OPTIONS, "--kv-device-bytes", "6M") for i in range(3)]
        pool.wait()
        for _ in range(8):
            victim = hosts[rng.randrange(3)]
            others = [s for s in hosts if s is not victim]
            jobs = [threads.submit(check, rng.choice(others), prompt_of(rng.randrange(6)) + [5] *
                                   rng.randrange(4), rng.randrange(1, 24)) for _ in range(6)]
            time.sleep(0.2 * rng.random())
            number = rng.choice((signal.SIGSTOP, signal.SIGKILL))
            victim.process.send_signal(number)
            for job in jobs:
                job.result()
            if number == signal.SIGKILL:
                victim.kill()
                at = hosts.index(victim)
                pool.instances.remove(victim)
                hosts[at] = pool.start(at, *OPTIONS, "--kv-device-bytes", "6M")
            else:
                victim.process.send_signal(signal.SIGCONT)
        assert sum(n_queried(s) for s in hosts) > 0
        nothing_is_lent(*hosts)


SHORT = [queries_give_the_tokens_of_one_instance, a_local_prefix_comes_before_the_remote_part,
         a_peer_killed_in_mid_answer_changes_no_token]
LONG = [an_instance_that_leaves_hands_its_own_kv_to_the_lender,
        a_long_prefix_is_queried_at_three_lenders, what_others_query_often_is_copied_to_them,
        a_lender_of_three_killed_in_mid_answer_changes_no_token,
        instances_query_each_other_in_mixed_batches, preempted_sequences_query_again,
        cancelled_requests_give_their_leases_back, a_peer_stopped_in_mid_answer_changes_no_token,
        a_lying_peer_changes_no_token, random_faults_change_no_token]


def main() -> int:
    global MODEL, REFERENCE, SEED
    parser = argparse.ArgumentParser()
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    SEED = args.seed
    tests = [t for t in SHORT + ([] if args.short else LONG)
             if not args.names or t.__name__ in args.names]
    with tempfile.TemporaryDirectory(prefix="tarn-pool-query-") as folder:
        MODEL = pool_model(folder, "--max-pos", "4096")
        need_pool(MODEL)
        REFERENCE = Answers(MODEL, folder)
        try:
            return run_tests(tests)
        finally:
            REFERENCE.close()


if __name__ == "__main__":
    sys.exit(main())
