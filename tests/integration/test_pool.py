#!/usr/bin/env python3
"""A pool of instances from a user's view, on this machine: KV that another instance computed, join
and leave, a rolling restart, tenants, strangers. Faults are in test_pool_faults.py.

    test_pool.py [NAME...]
"""
from __future__ import annotations

import argparse
import contextlib
import json
import random
import socket
import sys
import tempfile
from pathlib import Path

from http_helpers import WAIT_SECONDS, run_tests, wait_until
from pool_harness import (BLOCK, Instance, Place, Pool, Reference, ask, n_found, need_pool,
                          pool_model, prompt_of, remote)

N_FOUND = 10 * BLOCK  # of prompt_of()
KEYS = {"anna": "sk-test-anna", "bert": "sk-test-bert"}

MODEL: Path
REFERENCE: Reference


def check_pulled(pool: Pool, a: Instance, b: Instance, seeds: range) -> None:
    """Prompts that a computes are found by b on a, and the answers are those of one instance."""
    pool.compute(a, seeds)
    for seed in seeds:
        answer, tiers = ask(b, prompt_of(seed))
        REFERENCE.check(prompt_of(seed), answer)
        assert remote(tiers) == N_FOUND, tiers
        answer, tiers = ask(b, prompt_of(seed))
        REFERENCE.check(prompt_of(seed), answer)
        assert remote(tiers) == 0 and n_found(tiers) == N_FOUND, tiers


def kv_of_another_instance_is_found() -> None:
    with Pool(MODEL) as pool:
        a, b = pool.start(0, "--pool-transport", "tcp"), pool.start(1, "--pool-transport", "tcp")
        pool.wait()
        check_pulled(pool, a, b, range(3))
        check_pulled(pool, b, a, range(3, 5))
        blocks = 3 * N_FOUND / BLOCK
        # The pool threads publish their counts now and then.
        wait_until(lambda: b.metric("tarn:pool_pulled_blocks_total") == blocks, b.metrics)
        wait_until(lambda: a.metric("tarn:pool_lent_blocks_total") == blocks, a.metrics)
        assert b.metric("tarn:pool_pulled_bytes_total") > 0
        assert b.metrics()['tarn:prompt_tokens_by_tier_total{tier="remote"}'] == 3 * N_FOUND
        wait_until(lambda: a.metric("tarn:pool_lent_blocks") == 0, lambda: "a lease never ends")


def kv_comes_over_ucx_too() -> None:
    with Pool(MODEL) as pool:
        try:
            a = pool.start(0, "--pool-transport", "ucx")
        except SystemExit as error:  # refused by name
            assert "UCX" in str(error), error
            print("      no UCX in this build")
            return
        assert "transport ucx" in a.first_lines, a.first_lines
        b = pool.start(1, "--pool-transport", "ucx")
        pool.wait()
        check_pulled(pool, a, b, range(3))


def what_is_shorter_is_found_as_far_as_it_goes() -> None:
    with Pool(MODEL) as pool:
        a, b = pool.start(0), pool.start(1)
        pool.wait()
        pool.compute(a, range(1))
        ids = prompt_of(0)[:8 * BLOCK + 5] + [11] * 40
        answer, tiers = ask(b, ids)
        REFERENCE.check(ids, answer)
        assert remote(tiers) >= 8 * BLOCK, tiers


def instances_join_and_leave() -> None:
    with Pool(MODEL) as pool:
        a, b = pool.start(0), pool.start(1)
        pool.wait(2)
        pool.compute(a, range(2))
        c = pool.start(2)
        pool.wait(3)
        assert remote(ask(c, prompt_of(0))[1]) == N_FOUND
        b.end()
        pool.wait(2)
        a.kill()  # not in order: it disappears when its record expires
        pool.wait(1)
        answer, tiers = ask(c, prompt_of(1))
        REFERENCE.check(prompt_of(1), answer)
        assert n_found(tiers) == 0, tiers


def a_rolling_restart_loses_no_hot_segment() -> None:
    with Pool(MODEL) as pool:
        old = [pool.start(i) for i in range(3)]
        pool.wait()
        for i, s in enumerate(old):  # each holds something that nobody else has
            pool.compute(s, range(i * 2, i * 2 + 2))
        for i, s in enumerate(old):
            pool.start(i, name=f"new{i}")
            pool.wait()
            s.end()
            pool.wait(3)
        for seed in range(6):
            for s in pool.alive():
                answer, tiers = ask(s, prompt_of(seed))
                REFERENCE.check(prompt_of(seed), answer)
                assert n_found(tiers) == N_FOUND, (seed, s.name, tiers)


def an_instance_sleeps_and_the_pool_goes_on() -> None:
    """Over each transport: memory that was registered is freed, and registered again."""
    for transport in ("tcp", "ucx"):
        with Pool(MODEL) as pool:
            try:
                a, b = (pool.start(i, "--pool-transport", transport) for i in range(2))
            except SystemExit as error:  # refused by name
                assert "UCX" in str(error), error
                print("      no UCX in this build")
                return
            pool.wait()
            for first in (0, 10):
                check_pulled(pool, a, b, range(first, first + 2))
                wait_until(lambda: a.metric("tarn:pool_lent_blocks") == 0)
                pool.compute(a, range(first + 2, first + 3))
                assert a.request("POST", "/sleep?level=1")[0] == 200
                answer, tiers = ask(b, prompt_of(first + 2))
                REFERENCE.check(prompt_of(first + 2), answer)
                assert n_found(tiers) == 0, tiers
                assert a.request("POST", "/wake_up")[0] == 200
                answer, tiers = ask(a, prompt_of(first + 2))
                REFERENCE.check(prompt_of(first + 2), answer)
                assert remote(tiers) == N_FOUND, tiers


def tenants_share_nothing() -> None:
    with Pool(MODEL) as pool:
        file = pool.folder / "keys.json"
        file.write_text(json.dumps({"keys": [{"name": n, "key": k, "tenant": n}
                                             for n, k in KEYS.items()]}))
        file.chmod(0o600)
        options = ("--api-key-file", str(file), "--admin-api-key", "sk-test-admin")
        a, b = (TenantInstance(pool, Place(i), f"i{i}", *options) for i in range(2))
        pool.instances += [a, b]
        pool.wait()
        before = pool.n_segments()
        ask(a, prompt_of(0), KEYS["anna"])
        wait_until(lambda: pool.n_segments() >= before + 2, pool.n_segments)
        answer, tiers = ask(b, prompt_of(0), KEYS["bert"])
        REFERENCE.check(prompt_of(0), answer)
        assert n_found(tiers) == 0, tiers
        assert b.metric("tarn:pool_pulled_blocks_total") == 0
        answer, tiers = ask(b, prompt_of(0), KEYS["anna"])
        REFERENCE.check(prompt_of(0), answer)
        assert remote(tiers) == N_FOUND, tiers


class TenantInstance(Instance):
    """Metrics are for admins where keys exist."""

    def metrics(self) -> dict[str, float]:
        original = self.request
        try:
            self.request = lambda method, path, body=None, headers=None: original(  # type: ignore
                method, path, body, {"Authorization": "Bearer sk-test-admin", **(headers or {})})
            return super().metrics()
        finally:
            del self.request


def a_wrong_secret_keeps_an_instance_out() -> None:
    with Pool(MODEL) as pool:
        a = pool.start(0, "--pool-transport", "tcp")
        pool.wait()
        right = pool.secret
        pool.secret = pool.folder / "wrong"
        pool.secret.write_text("0123456789abcdef0123456789abcdef\n")
        pool.secret.chmod(0o600)
        b = pool.start(1, "--pool-transport", "tcp")
        pool.secret = right
        pool.compute(a, range(1))
        answer, tiers = ask(b, prompt_of(0))
        REFERENCE.check(prompt_of(0), answer)
        assert n_found(tiers) == 0, tiers
        assert a.metric("tarn:pool_lent_blocks_total") == 0


def read_until_closed(s: socket.socket) -> bytes:
    s.settimeout(WAIT_SECONDS)
    data = b""
    with contextlib.suppress(ConnectionError):
        while piece := s.recv(1 << 16):
            data += piece
    return data


def a_stranger_gets_nothing() -> None:
    """Garbage, silence, and a recorded conversation of two members, sent again."""
    with Pool(MODEL) as pool:
        a, proxy = pool.start_behind_proxy(0)
        b = pool.start(1, "--pool-transport", "tcp")
        pool.wait()
        pool.compute(a, range(1))
        assert remote(ask(b, prompt_of(0))[1]) == N_FOUND
        recorded = max(proxy.recorded, key=lambda r: len(r["down"]))
        assert len(recorded["down"]) > 100_000, "the blocks went through the proxy"
        before = a.metric("tarn:pool_lent_bytes_total")
        rng = random.Random(7)
        attempts = [bytes(recorded["up"]), b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", bytes(4096),
                    b"\xff" * 4096, rng.randbytes(100_000)]
        attempts += [rng.randbytes(rng.randrange(1, 300)) for _ in range(10)]
        for data in attempts:
            with contextlib.closing(Place(0).connect(a.data_port)) as s:
                with contextlib.suppress(OSError):  # it may be closed before all is sent
                    s.sendall(data)
                    s.shutdown(socket.SHUT_WR)
                assert len(read_until_closed(s)) < 1000
        assert a.metric("tarn:pool_lent_bytes_total") == before
        wait_until(lambda: a.metric("tarn:pool_refused_total") >= 1)
        # Members go on.
        pool.compute(a, range(1, 2))
        assert remote(ask(b, prompt_of(1))[1]) == N_FOUND


TESTS = [kv_of_another_instance_is_found, kv_comes_over_ucx_too,
         what_is_shorter_is_found_as_far_as_it_goes, instances_join_and_leave,
         a_rolling_restart_loses_no_hot_segment, an_instance_sleeps_and_the_pool_goes_on,
         tenants_share_nothing,
         a_wrong_secret_keeps_an_instance_out, a_stranger_gets_nothing]


def main() -> int:
    global MODEL, REFERENCE
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    names = parser.parse_args().names
    with tempfile.TemporaryDirectory(prefix="tarn-pool-test-") as folder:
        MODEL = pool_model(folder)
        need_pool(MODEL)
        REFERENCE = Reference(MODEL, folder)
        try:
            return run_tests([t for t in TESTS if not names or t.__name__ in names])
        finally:
            REFERENCE.close()


if __name__ == "__main__":
    sys.exit(main())
