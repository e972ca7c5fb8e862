#!/usr/bin/env python3
"""A pool of instances under faults: each answer must equal that of one instance alone, no block may
leak, and no request may wait longer than the deadlines of lookup and pull allow.

    test_pool_faults.py [--requests 500] [--seed 1] [NAME...]

Hosts are network namespaces; tests that need them are skipped where they are not permitted. A fault
lasts until the requests that meet it have ended, so a request that waits for the fault's end would
never end. Clocks of hosts: a time namespace moves the monotonic clock of an instance by a day. The
clock of the day cannot be moved for one process, but nothing in the pool reads it: all that expires
is timed by Redis, or by one process alone.
"""
from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Callable

from http_helpers import WAIT_SECONDS, run_tests, wait_until
from pool_harness import (BLOCK, PULLS, Instance, Net, NoNamespaces, Pool, Reference, ask, n_found,
                          need_pool, pool_model, prompt_of, remote)

N_FOUND = 10 * BLOCK
LOOKUP_MS, PULL_MS = 500, 2000
DEADLINES = ("--pool-lookup-ms", str(LOOKUP_MS), "--pool-pull-ms", str(PULL_MS), *PULLS)
# What a request may take on a slow machine beside its deadlines. Without deadlines a request would
# wait as long as its fault lasts, which is longer.
SLACK_S = 20
HELD_BYTES = 150_000  # of a transfer of 655,360, before it stops
TCP = ("--pool-transport", "tcp")
UCX = ("--pool-transport", "ucx")

MODEL: Path
OTHER: Path
REFERENCE: Reference
N_REQUESTS = 500
SEED = 1


def check(s: Instance, seed: int, key: str = "") -> dict[str, int]:
    """Ask; the answer is right, and came in time."""
    began = time.monotonic()
    answer, tiers = ask(s, prompt_of(seed), key)
    took = time.monotonic() - began
    REFERENCE.check(prompt_of(seed), answer)
    assert took < (LOOKUP_MS + PULL_MS) / 1000 + SLACK_S, f"{took:.1f} s"
    return tiers


def works_again(pool: Pool, a: Instance, b: Instance, first_seed: int) -> None:
    """After a fault: b finds what a computes from now on."""
    end = time.monotonic() + WAIT_SECONDS
    seed = first_seed
    while True:
        ask(a, prompt_of(seed))
        time.sleep(0.2)
        if remote(check(b, seed)) > 0:
            return
        assert time.monotonic() < end, (a.metrics(), b.metrics())
        seed += 1


def pair(pool: Pool, transport: tuple[str, str] = TCP) -> tuple[Instance, Instance]:
    a, b = pool.start(0, *transport), pool.start(1, *transport)
    pool.wait()
    return a, b


# --- the network ---

def a_partition_between_instances_heals() -> None:
    """Both reach Redis, which goes on naming the other one."""
    with Net(2) as net, Pool(MODEL, net, DEADLINES) as pool:
        a, b = pair(pool)
        pool.compute(a, range(4))
        assert remote(check(b, 0)) == N_FOUND
        net.hosts[1].cut(a.place.address)
        for seed in (1, 2):
            assert n_found(check(b, seed)) == 0
        net.hosts[1].heal()
        works_again(pool, a, b, 10)


def an_instance_without_network_goes_on_alone() -> None:
    with Net(2) as net, Pool(MODEL, net, DEADLINES) as pool:
        a, b = pair(pool)
        pool.compute(a, range(3))
        net.hosts[1].unplug()
        assert n_found(check(b, 0)) == 0 and n_found(check(b, 0)) == N_FOUND
        check(a, 3)
        wait_until(lambda: a.n_instances() == 1, a.n_instances)
        net.hosts[1].heal()
        pool.wait(2)
        works_again(pool, a, b, 10)


def a_slow_or_lossy_network_changes_no_answer() -> None:
    with Net(2) as net, Pool(MODEL, net, DEADLINES) as pool:
        a, b = pair(pool)
        pool.compute(a, range(8))
        if not net.hosts[0].delay(40):
            print("      no netem in this kernel: without delay")
        check(b, 0)
        net.hosts[0].heal()
        net.hosts[0].slow("256kbit")  # 655,360 bytes take 20 s
        check(b, 1)
        net.hosts[0].heal()
        if net.hosts[1].lose(20):
            check(b, 2)
            check(b, 3)
        net.hosts[1].heal()
        works_again(pool, a, b, 10)


# --- peers ---

def held_transfer(pool: Pool) -> tuple[Instance, Instance, "threading.Thread", list]:
    """b pulls from a, and the transfer stands still in its middle."""
    a, proxy = pool.start_behind_proxy(0)
    b = pool.start(1, *TCP)
    pool.wait()
    pool.compute(a, range(3))
    assert remote(check(b, 0)) == N_FOUND
    proxy.hold_after(HELD_BYTES)
    found: list = []
    request = threading.Thread(target=lambda: found.append(check(b, 1)))
    request.start()
    assert proxy.is_holding.wait(WAIT_SECONDS), "no transfer began"
    return a, b, request, found


def a_peer_killed_in_the_middle_of_a_transfer_costs_a_recomputation() -> None:
    with Pool(MODEL, None, DEADLINES) as pool:
        a, b, request, found = held_transfer(pool)
        a.kill()
        request.join()
        assert found and remote(found[0]) < N_FOUND, found
        assert n_found(check(b, 2)) == 0
        works_again(pool, pool.start(0, *TCP), b, 10)


def a_transfer_that_stands_still_ends_at_its_deadline() -> None:
    with Pool(MODEL, None, DEADLINES) as pool:
        a, b, request, found = held_transfer(pool)
        request.join()
        assert found and remote(found[0]) < N_FOUND, found
        wait_until(lambda: b.metric("tarn:pool_reads_failed_total") > 0, b.metrics)
        pool.proxies[0].release()
        works_again(pool, a, b, 10)
        wait_until(lambda: a.metric("tarn:pool_lent_blocks") == 0)


def a_stopped_peer_is_not_waited_for() -> None:
    with Pool(MODEL, None, DEADLINES) as pool:
        a, b = pair(pool)
        pool.compute(a, range(3))
        a.process.send_signal(signal.SIGSTOP)
        for seed in range(2):
            assert n_found(check(b, seed)) == 0
        a.process.send_signal(signal.SIGCONT)
        pool.wait(2)
        works_again(pool, a, b, 10)


def peers_are_stopped_and_killed_over_ucx() -> None:
    """A lender dies while several requests pull from it."""
    with Pool(MODEL, None, DEADLINES) as pool:
        try:
            a, b = pair(pool, UCX)
        except SystemExit as error:  # refused by name
            assert "UCX" in str(error), error
            print("      no UCX in this build")
            return
        pool.compute(a, range(8))
        assert remote(check(b, 0)) == N_FOUND
        a.process.send_signal(signal.SIGSTOP)
        assert n_found(check(b, 1)) == 0
        a.process.send_signal(signal.SIGCONT)
        pool.wait(2)
        works_again(pool, a, b, 10)
        with ThreadPoolExecutor(6) as threads:
            jobs = [threads.submit(check, b, seed) for seed in range(2, 8)]
            wait_until(lambda: b.metric("tarn:pool_lookups_total") > 3
                       or all(job.done() for job in jobs))
            a.kill()
            for job in jobs:
                job.result()
        works_again(pool, pool.start(0, *UCX), b, 50)


def what_a_lying_peer_sends_is_computed_instead() -> None:
    """Bits of the payload flip on the way: the checksum of each block must notice."""
    with Pool(MODEL, None, DEADLINES) as pool:
        a, proxy = pool.start_behind_proxy(0)
        b = pool.start(1, *TCP)
        pool.wait()
        pool.compute(a, range(1))
        assert remote(check(b, 0)) == N_FOUND
        # So long that a lookup is worth its time, however slow the first one was.
        ids, before = prompt_of(20, 40), pool.n_segments()
        ask(a, ids)
        wait_until(lambda: pool.n_segments() >= before + 5, pool.n_segments)
        # The middle of a large piece is payload: heads are small and come first.
        def flip(way: str, at: int, data: bytes) -> bytes:
            if way == "down" and len(data) > 8192:
                return data[:6000] + bytes([data[6000] ^ 4]) + data[6001:]
            return data
        proxy.alter = flip
        answer, tiers = ask(b, ids)
        REFERENCE.check(ids, answer)
        assert remote(tiers) < 40 * BLOCK
        corrupt = 'tarn:pool_reads_failed_total{why="corrupt"}'
        wait_until(lambda: b.metrics()[corrupt] > 0, b.metrics)
        proxy.alter = lambda way, at, data: data
        works_again(pool, a, b, 10)


def broken_messages_change_no_answer() -> None:
    """Any byte may be wrong: lengths, kinds, keys, numbers."""
    with Pool(MODEL, None, DEADLINES) as pool:
        a, proxy = pool.start_behind_proxy(0)
        b = pool.start(1, *TCP)
        pool.wait()
        pool.compute(a, range(12))
        rng = random.Random(SEED)

        def break_it(way: str, at: int, data: bytes) -> bytes:
            broken = bytearray(data)
            for _ in range(1 + len(data) // 20_000):
                broken[rng.randrange(min(len(data), 400))] = rng.randrange(256)
            return bytes(broken)
        proxy.alter = break_it
        for seed in range(12):
            check(b, seed)
        proxy.alter = lambda way, at, data: data
        works_again(pool, a, b, 20)


def another_model_in_the_same_redis_is_another_pool() -> None:
    with Pool(MODEL, None, DEADLINES) as pool:
        a = pool.start(0, *TCP)
        other = pool.start(1, *TCP, model=OTHER)
        pool.compute(a, range(2))
        assert n_found(ask(other, prompt_of(0))[1]) == 0
        before = pool.n_segments()
        ask(other, prompt_of(5))
        wait_until(lambda: pool.n_segments() >= before + 2, pool.n_segments)
        assert n_found(check(a, 5)) == 0
        for s in (a, other):
            assert s.metric("tarn:pool_pulled_blocks_total") == 0
            assert s.metric("tarn:pool_lent_blocks_total") == 0
        b = pool.start(1, *TCP, name="b")
        wait_until(lambda: b.n_instances() >= 2)
        assert remote(check(b, 1)) == N_FOUND


# --- Redis ---

def instances_outlive_their_redis() -> None:
    """Flushed, stopped, slow, started again: instances answer alone and find each other again."""
    with Pool(MODEL, None, DEADLINES) as pool:
        a, b = pair(pool)
        pool.compute(a, range(2))
        assert remote(check(b, 0)) == N_FOUND
        pool.redis.flush()
        check(b, 1)
        pool.wait(2)
        works_again(pool, a, b, 10)
        pool.redis.signal(signal.SIGSTOP)
        for seed in (30, 31):
            check(a, seed)
            assert n_found(check(b, seed)) == 0
        pool.redis.signal(signal.SIGCONT)
        pool.wait(2)
        works_again(pool, a, b, 40)
        pool.redis.stop()
        for seed in (60, 61):
            check(a, seed)
            assert n_found(check(b, seed)) == 0
        assert a.metric("tarn:pool_directory_up") == 0
        pool.redis.start()
        pool.wait(2)
        works_again(pool, a, b, 70)
        # What was computed before Redis lost everything is announced again.
        wait_until(lambda: pool.n_segments() >= 2 * 8, pool.n_segments)


def clocks_of_hosts_are_not_compared() -> None:
    skew = ("unshare", "-T", "--monotonic", "86400", "--boottime", "86400")
    if subprocess.run([*skew, "true"], capture_output=True).returncode:
        print("      no time namespaces here")
        return
    with Pool(MODEL, None, DEADLINES) as pool:
        a = pool.start(0, *TCP, wrapper=skew)
        b = pool.start(1, *TCP)
        pool.wait()
        pool.compute(a, range(2))
        pool.compute(b, range(2, 4))
        assert remote(check(b, 0)) == N_FOUND and remote(check(a, 2)) == N_FOUND
        wait_until(lambda: a.metric("tarn:pool_lent_blocks") == 0)


# --- all at once ---

class Chaos:
    """One fault at a time, drawn by a seed; it begins while requests run and lasts for some more.
    Its victim is asked nothing by the requests that run at its beginning."""

    def __init__(self, pool: Pool, net: Net | None, rng: random.Random) -> None:
        self.pool, self.net, self.rng = pool, net, rng
        self.undo: Callable[[], None] = lambda: None
        self.n_left = 0
        self.counts: dict[str, int] = {}
        self.faults: dict[str, Callable[[int], Callable[[], None]]] = {
            "kill": self.kill, "stop": self.stop, "corrupt": self.corrupt, "hold": self.hold,
            "flush": self.flush, "redis stops": self.redis_stops, "redis slow": self.redis_slow}
        if net:
            self.faults |= {"cut": self.cut, "unplug": self.unplug}

    def next(self) -> tuple[int, Callable[[], None]] | None:
        """The victim of a new fault, and what begins it; the fault before it is over then."""
        self.n_left -= 1
        if self.n_left > 0:
            return None
        self.undo()
        self.undo = lambda: None
        name = self.rng.choice(sorted(self.faults))
        victim = self.rng.randrange(len(self.pool.instances))
        self.counts[name] = self.counts.get(name, 0) + 1
        self.n_left = self.rng.randrange(2, 6)

        def begin() -> None:
            self.undo = self.faults[name](victim)
        return victim, begin

    def kill(self, i: int) -> Callable[[], None]:
        old = self.pool.instances[i]
        old.kill()

        def restart() -> None:
            self.pool.instances.remove(old)
            self.pool.start(i, *TCP, name=old.name, announce=old.announce,
                            data_port=old.data_port)
            self.pool.instances.insert(i, self.pool.instances.pop())
        return restart

    def stop(self, i: int) -> Callable[[], None]:
        s = self.pool.instances[i]
        s.process.send_signal(signal.SIGSTOP)
        return lambda: s.process.send_signal(signal.SIGCONT)

    def corrupt(self, _: int) -> Callable[[], None]:
        rng, proxy = random.Random(self.rng.random()), self.pool.proxies[0]

        def alter(way: str, at: int, data: bytes) -> bytes:
            broken = bytearray(data)
            broken[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            return bytes(broken)
        proxy.alter = alter

        def restore() -> None:
            proxy.alter = lambda way, at, data: data
        return restore

    def hold(self, _: int) -> Callable[[], None]:
        proxy = self.pool.proxies[0]
        proxy.hold_after(self.rng.randrange(200_000))
        return proxy.release

    def flush(self, _: int) -> Callable[[], None]:
        self.pool.redis.flush()
        return lambda: None

    def redis_stops(self, _: int) -> Callable[[], None]:
        self.pool.redis.stop()
        return self.pool.redis.start

    def redis_slow(self, _: int) -> Callable[[], None]:
        self.pool.redis.signal(signal.SIGSTOP)
        return lambda: self.pool.redis.signal(signal.SIGCONT)

    def cut(self, i: int) -> Callable[[], None]:
        assert self.net
        j = (i + 1 + self.rng.randrange(len(self.net.hosts) - 1)) % len(self.net.hosts)
        self.net.hosts[i].cut(self.net.hosts[j].address)
        return self.net.heal

    def unplug(self, i: int) -> Callable[[], None]:
        assert self.net
        self.net.hosts[i].unplug()
        return self.net.heal


def is_up(s: Instance) -> bool:
    if s.process.poll() is not None:
        return False
    state = Path(f"/proc/{s.process.pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    return state != "T"


def under_faults(net: Net | None) -> None:
    """Prompts of some families with common beginnings, on instances with little memory."""
    rng = random.Random(SEED)
    little = ("--kv-device-bytes", "6M", *DEADLINES, "--pool-query", "auto")  # 96 blocks
    with Pool(MODEL, net, little) as pool, ThreadPoolExecutor(3) as threads:
        pool.start_behind_proxy(0)
        for i in (1, 2):
            pool.start(i, *TCP)
        pool.wait()
        chaos = Chaos(pool, net, rng)
        tiers: dict[str, int] = {}
        n_asked = 0

        def one(s: Instance, seed: int, n_blocks: int) -> None:
            ids = prompt_of(seed)[:n_blocks * BLOCK + 1] + [7] * (seed % 5)
            began = time.monotonic()
            answer, found = ask(s, ids)
            took = time.monotonic() - began
            REFERENCE.check(ids, answer)
            assert took < (LOOKUP_MS + PULL_MS) / 1000 + SLACK_S, f"{took:.1f} s"
            for t, n in found.items():
                tiers[t] = tiers.get(t, 0) + n

        while n_asked < N_REQUESTS:
            fault = chaos.next()
            up = [s for i, s in enumerate(pool.instances)
                  if is_up(s) and not (fault and i == fault[0])]
            jobs = [threads.submit(one, s, rng.randrange(16), rng.randrange(4, 11))
                    for s in rng.sample(up, min(len(up), rng.randrange(1, 4)))]
            if fault:
                time.sleep(0.02 * rng.random())
                fault[1]()
            for job in jobs:
                job.result()
            n_asked += len(jobs)
        chaos.undo()
        pool.wait()
        print(f"      {n_asked} requests, tokens found {tiers}, faults {chaos.counts}")
        assert tiers.get("remote", 0) > 0, tiers


def random_faults_on_this_machine() -> None:
    under_faults(None)


def random_faults_between_hosts() -> None:
    with Net(3) as net:
        under_faults(net)


BETWEEN_HOSTS = [a_partition_between_instances_heals, an_instance_without_network_goes_on_alone,
                 a_slow_or_lossy_network_changes_no_answer, random_faults_between_hosts]
HERE = [a_peer_killed_in_the_middle_of_a_transfer_costs_a_recomputation,
        a_transfer_that_stands_still_ends_at_its_deadline, a_stopped_peer_is_not_waited_for,
        peers_are_stopped_and_killed_over_ucx,
        what_a_lying_peer_sends_is_computed_instead, broken_messages_change_no_answer,
        another_model_in_the_same_redis_is_another_pool, instances_outlive_their_redis,
        clocks_of_hosts_are_not_compared, random_faults_on_this_machine]


def tests() -> list[Callable[[], None]]:
    try:
        Net(1).close()
    except NoNamespaces as error:
        print(f"      no network namespaces here ({error}): without partitions")
        return HERE
    return HERE + BETWEEN_HOSTS


def main() -> int:
    global MODEL, OTHER, REFERENCE, N_REQUESTS, SEED
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    N_REQUESTS, SEED = args.requests, args.seed
    with tempfile.TemporaryDirectory(prefix="tarn-pool-test-") as folder:
        MODEL = pool_model(folder)
        need_pool(MODEL)
        Path(folder, "b").mkdir()
        OTHER = pool_model(str(Path(folder, "b")), "--seed", "2")
        REFERENCE = Reference(MODEL, folder)
        try:
            return run_tests([t for t in tests() if not args.names or t.__name__ in args.names])
        finally:
            REFERENCE.close()


if __name__ == "__main__":
    sys.exit(main())
