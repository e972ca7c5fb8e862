#!/usr/bin/env python3
"""Instances of a pool on emulated GPUs of one machine: KV goes from device memory to device memory
(CUDA IPC), and answers are those of one instance alone, also when a copy stands still in its middle
while one of the two is killed or put to sleep.

    test_pool_gpu.py [--whole | --in-the-middle | NAME...]    all cases, those without or with
                                                              faults, or those of these names
"""
from __future__ import annotations

import http.client
import os
import re
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path

from http_helpers import REPO, WAIT_SECONDS, run_tests, tarn_test, wait_until
from pool_harness import BLOCK, Instance, Pool, ask, pool_model, prompt_of

EMULATED = Path(os.environ.get("TARN_BUILD_DIR", REPO / "build")) / "tests/tarn-server-emulated"
SMALL = ("--layers", "1", "--dim", "32", "--heads", "2", "--kv-heads", "1", "--ffn", "32")
# Costs are measured: those that are assumed without it are a real GPU's, whose computing is faster
# than any read here. "always": lookups are made in any case. GPUs send no queries.
GPU = ("--device", "cuda", "--profile-cost", "--pool-query", "always", "--batch-invariant",
       "--kv-device-bytes", "2M", "--max-num-seqs", "2", "--max-model-len", "256",
       "--kv-segment-tokens", "64")
# Without a tier on the host nothing is lent through the host.
NO_HOST = ("--kv-host-bytes", "0")
N_BLOCKS = 4  # two segments


def start(pool: Pool, *options: str) -> Instance:
    return pool.start(0, *GPU, *options, program=EMULATED)


def prompt(seed: int) -> list[int]:
    return prompt_of(seed, N_BLOCKS)


def segments(pool: Pool) -> set[bytes]:
    """Keys of the directory; the end of one may be missing."""
    return {line for line in pool.redis.ask("KEYS *").split(b"\r\n") if b":s:" in line}


def computes(pool: Pool, s: Instance, *seeds: int) -> list[tuple]:
    """Answers of the instance; the directory knows its two segments of each prompt."""
    before = segments(pool)  # some of which may leave: of an instance that was put to sleep
    answers = [ask(s, prompt(seed))[0] for seed in seeds]
    wait_until(lambda: len(segments(pool) - before) >= 2 * len(seeds), s.log_text)
    return answers


def sees(s: Instance, seed: int, expected: tuple, n_remote: int) -> None:
    answer, found = ask(s, prompt(seed))
    assert answer == expected, (s.name, answer, expected)
    assert found["remote"] == n_remote, (s.name, found)


def copied(s: Instance) -> None:
    """All that the instance has read came from another GPU."""
    def all_of_it() -> bool:
        metrics = s.metrics()
        n = metrics["tarn:pool_device_ipc_bytes_total"]
        return n > 0 and n == metrics["tarn:pool_pulled_bytes_total"]
    wait_until(all_of_it, s.log_text)
    line = r"reads the GPU memory of another instance peer=[0-9a-f]{16} bytes=\d+"
    assert re.search(line, s.log_text()), s.log_text()


class Copying(threading.Thread):
    """Holds copies, asks, and waits until a copy stands still in its middle."""

    def __init__(self, hold: Path, s: Instance, seed: int) -> None:
        super().__init__(daemon=True)
        self.hold, self.s, self.seed = hold, s, seed
        self.answer: tuple | None = None
        hold.touch()
        self.start()
        wait_until(lambda: hold.stat().st_size > 0, s.log_text)

    def run(self) -> None:
        try:
            self.answer = ask(self.s, prompt(self.seed))[0]
        except (OSError, http.client.HTTPException):
            pass  # its server was killed

    def go_on(self) -> None:
        self.hold.unlink()

    def end(self, expected: tuple) -> None:
        self.join(WAIT_SECONDS)
        assert self.answer == expected, (self.s.name, self.answer, expected, self.s.log_text())


def start_held(pool: Pool, hold: Path) -> Instance:
    """An instance whose copies out of the memory of others stand still while the file exists."""
    os.environ["TARN_EMULATION_HOLD"] = str(hold)
    try:
        s = start(pool, *NO_HOST)
    finally:
        del os.environ["TARN_EMULATION_HOLD"]
    pool.wait(len(pool.instances))
    return s


def sleep(s: Instance) -> threading.Thread:
    def call() -> None:
        assert s.request("POST", "/sleep?level=1&mode=keep")[0] == 200
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread


def is_asleep(s: Instance) -> bool:
    return bool(s.request("GET", "/is_sleeping")[2]["is_sleeping"])


def reads_again(pool: Pool, one: Instance, two: Instance, first_seed: int) -> None:
    """Over GPU memory, as soon as that is mapped."""
    before = two.metric("tarn:pool_device_ipc_bytes_total")
    end = time.monotonic() + WAIT_SECONDS
    seed = first_seed
    while two.metric("tarn:pool_device_ipc_bytes_total") == before:
        assert time.monotonic() < end, two.log_text()
        answer = computes(pool, one, seed)[0]
        assert ask(two, prompt(seed))[0] == answer
        seed += 1


def one_of_two_sleeps_in_the_middle_of_a_copy() -> None:
    """Memory is not given back before the copy out of it has ended."""
    with tempfile.TemporaryDirectory() as folder, Pool(pool_model(folder, *SMALL)) as pool:
        one, two = start(pool, *NO_HOST), start_held(pool, hold := Path(folder, "hold"))
        for seed, sleeper in ((1, one), (2, two)):
            [answer] = computes(pool, one, seed)
            copying = Copying(hold, two, seed)
            thread = sleep(sleeper)
            time.sleep(0.2)
            assert thread.is_alive() and not is_asleep(sleeper), sleeper.log_text()
            copying.go_on()
            if sleeper is one:
                copying.end(answer)
            thread.join(WAIT_SECONDS)
            assert is_asleep(sleeper), sleeper.log_text()
            assert sleeper.request("POST", "/wake_up")[0] == 200
            copying.end(answer)
            reads_again(pool, one, two, 1000 * seed)


def one_of_two_is_killed_in_the_middle_of_a_copy() -> None:
    with tempfile.TemporaryDirectory() as folder, Pool(pool_model(folder, *SMALL)) as pool:
        one, two = start(pool, *NO_HOST), start_held(pool, hold := Path(folder, "hold"))
        answers = computes(pool, one, *range(3))
        sees(two, 0, answers[0], N_BLOCKS * BLOCK)
        copying = Copying(hold, two, 1)
        two.kill()
        pool.instances.remove(two)
        copying.join(WAIT_SECONDS)
        copying.go_on()
        wait_until(lambda: one.metric("tarn:pool_lent_blocks") == 0, one.log_text)
        sees(one, 1, answers[1], 0)
        two = start_held(pool, hold)
        reads_again(pool, one, two, 1000)
        copying = Copying(hold, two, 2)
        one.kill()
        pool.instances.remove(one)
        wait_until(lambda: two.n_instances() == 1, two.log_text)
        copying.go_on()
        copying.end(answers[2])
        wait_until(lambda: two.metric("tarn:pool_device_ipc_instances") == 0, two.log_text)
        one = start(pool, *NO_HOST)
        pool.wait(2)
        reads_again(pool, one, two, 2000)


def kv_goes_from_gpu_to_gpu() -> None:
    with tempfile.TemporaryDirectory() as folder, Pool(pool_model(folder, *SMALL)) as pool:
        one, two = start(pool, *NO_HOST), start(pool, "--kv-host-bytes", "1M")
        pool.wait(2)
        answers = computes(pool, one, 0, 1)
        sees(two, 0, answers[0], N_BLOCKS * BLOCK)
        copied(two)
        answers += computes(pool, two, 2)
        sees(one, 2, answers[2], N_BLOCKS * BLOCK)
        copied(one)
        assert two.metric("tarn:pool_device_ipc_instances") == 1
        one.kill()
        pool.instances.remove(one)
        wait_until(lambda: two.metric("tarn:pool_device_ipc_instances") == 0, two.log_text)
        sees(two, 1, answers[1], 0)
        sees(two, 0, answers[0], 0)  # found in its own memory


def what_is_read_lies_behind_what_the_host_has() -> None:
    """The beginning of the path has been evicted to the reader's host, and is fetched first."""
    with tempfile.TemporaryDirectory() as folder, Pool(pool_model(folder, *SMALL)) as pool:
        one = start(pool, *NO_HOST)
        little = start(pool, "--kv-host-bytes", "1M", "--kv-device-bytes", "64K")  # 32 blocks
        pool.wait(2)
        answers = computes(pool, one, 0)
        half = N_BLOCKS * BLOCK // 2
        other = prompt(0)[:half] + prompt_of(1, 1)  # a copy that goes on is no surplus one
        assert ask(little, other)[1]["remote"] == half
        for seed in range(10, 15):
            ask(little, prompt_of(seed, 7), n=1)
        before = little.metric("tarn:kv_blocks_fetched_total")
        sees(little, 0, answers[0], half)
        n_fetched = little.metric("tarn:kv_blocks_fetched_total") - before
        assert n_fetched == N_BLOCKS, n_fetched  # from the host, and from the other instance
        copied(little)


def instances_of_two_gpus_share_kv_through_the_host() -> None:
    """Blocks have a part on each GPU, and travel with all parts."""
    shape = [*SMALL]
    shape[shape.index("--kv-heads") + 1] = "2"
    options = ("--tensor-parallel-size", "2", "--kv-host-bytes", "1M")
    os.environ["TARN_EMULATION_DEVICES"] = "2"
    try:
        with tempfile.TemporaryDirectory() as folder, Pool(pool_model(folder, *shape)) as pool:
            one, two = start(pool, *options), start(pool, *options)
            pool.wait(2)
            answers = computes(pool, one, 0)
            sees(two, 0, answers[0], N_BLOCKS * BLOCK)
            assert two.metric("tarn:pool_device_ipc_instances") == 0
            alone = pool.start(0, *GPU, *NO_HOST, program=EMULATED)  # other bits
            pool.wait(3)
            assert ask(alone, prompt(0))[1]["remote"] == 0
    finally:
        del os.environ["TARN_EMULATION_DEVICES"]


if __name__ == "__main__":
    if not EMULATED.exists():
        print("no tarn-server-emulated in this build")
        sys.exit(77)
    if not shutil.which("redis-server"):
        tarn_test.skip("no redis-server")
    whole = [kv_goes_from_gpu_to_gpu, what_is_read_lies_behind_what_the_host_has,
             instances_of_two_gpus_share_kv_through_the_host]
    in_the_middle = [one_of_two_sleeps_in_the_middle_of_a_copy,
                     one_of_two_is_killed_in_the_middle_of_a_copy]
    words = sys.argv[1:]
    tests = [t for t in whole + in_the_middle if not words or t.__name__ in words
             or ("--whole" in words and t in whole)
             or ("--in-the-middle" in words and t in in_the_middle)]
    try:
        sys.exit(run_tests(tests))
    except SystemExit as error:
        if "without hiredis" in str(error):
            tarn_test.skip("a build without hiredis")
        raise
