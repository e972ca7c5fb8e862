#!/usr/bin/env python3
"""Sleep: the memory of weights and KV is given back, no step runs, and after waking the answers are
those from before, bit for bit."""
from __future__ import annotations

import concurrent.futures
import json
import signal
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, Callable

from http_helpers import Server, make_model, run_tests, tarn_server, wait_until
from tarn_test import is_sanitized, program

TEXT = "/v1/completions"
# A sanitized build computes ten times slower: half of the pool, and of the prompts that fill it.
IS_SLOW = is_sanitized(program("tarn-server"))
PARTS = 1 if IS_SLOW else 2
KV_BYTES = PARTS * (4 << 20)
SHAPE = ("--layers", "3", "--dim", "256", "--heads", "4")
FEW_WEIGHTS = (*SHAPE, "--kv-heads", "2", "--ffn", "256" if IS_SLOW else "2048")
# Weights that count in a process's memory, and KV that few tokens fill.
MANY_WEIGHTS = (*SHAPE, "--kv-heads", "4", "--ffn", "2048")
PROMPT = [3 + i * 7 % 90 for i in range(100)]
BODY = {"prompt": PROMPT, "max_tokens": 12, "ignore_eos": True, "logprobs": 3, "seed": 5,
        "temperature": 0.8}
ASLEEP = ["weights", "kv_cache"]
FOLDER: Path
MODEL: Path
LARGE: Path


def serve(*options: str, model: Path | None = None) -> Server:
    return tarn_server(model or MODEL, "--kv-device-bytes", str(KV_BYTES), "--no-profile-cost",
                       *options)


def post(s: Server, path: str, body: Any = None) -> Any:
    status, _, answer = s.request("POST", path, body)
    assert status == 200, (path, status, answer)
    return answer


def told(answer: Any) -> Any:
    """Tokens, their logprobs and the reason of the end, which may not change."""
    choice = answer["choices"][0]
    return choice["text"], choice["logprobs"]["token_logprobs"], choice["finish_reason"]


def state(s: Server) -> Any:
    return s.request("GET", "/is_sleeping")[2]


def resident(s: Server) -> int:
    """Anonymous bytes in memory."""
    lines = Path(f"/proc/{s.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:"))


def fill(s: Server) -> None:
    """Use each block of the KV pool of LARGE once: a token has 6 KB."""
    for first in range(2 * PARTS + 1):
        post(s, TEXT, {"prompt": [first + 20, *PROMPT * 4], "max_tokens": 1})


def sleep_state(s: Server) -> list[str]:
    now = s.metrics()
    return [n for n in ("awake", "weights_offloaded", "discard_all")
            if now[f'vllm:engine_sleep_state{{sleep_state="{n}"}}']]


def a_sleep_gives_memory_back_and_changes_no_answer() -> None:
    weights = (LARGE / "model.safetensors").stat().st_size
    for options in ((), ("--quantization", "int8", "--cache-dir", str(FOLDER / "cache"))):
        with serve(*options, model=LARGE) as s:
            before = told(post(s, TEXT, BODY))
            part = weights // 5 if options else weights * 9 // 10
            for level, name in ((1, "weights_offloaded"), (2, "discard_all")):
                fill(s)
                awake = resident(s)
                answer = post(s, f"/sleep?level={level}")
                assert answer == {"is_sleeping": True, "level": level, "asleep": ASLEEP}, answer
                assert state(s) == answer and sleep_state(s) == [name]
                asleep = resident(s)
                assert awake - asleep > KV_BYTES + part, (awake, asleep, part)
                assert s.request("GET", "/health")[2] == {"status": "ready", "is_sleeping": True}
                assert s.request("GET", "/health/live")[0] == 200
                assert len(s.request("GET", "/v1/models")[2]["data"]) == 1
                assert post(s, "/wake_up") == {"is_sleeping": False, "asleep": []}
                assert state(s)["is_sleeping"] is False and sleep_state(s) == ["awake"]
                assert told(post(s, TEXT, BODY)) == before
            assert resident(s) > asleep + part
            assert s.request("GET", "/health")[2] == {"status": "ready"}


def requests_wait_and_their_clients_may_leave() -> None:
    with serve("--max-num-queued-reqs", "2", "--max-num-seqs", "1") as s, \
            concurrent.futures.ThreadPoolExecutor() as pool:
        before = told(post(s, TEXT, BODY))
        post(s, "/sleep")
        steps = s.metrics()["tarn:steps_total"]
        waiting = pool.submit(post, s, TEXT, {**BODY, "request_id": "stays"})
        leaving = s.open_raw(TEXT, BODY)
        wait_until(lambda: s.metrics()["vllm:num_requests_waiting"] == 2)
        aborted = pool.submit(post, s, TEXT, {**BODY, "request_id": "ends"})
        wait_until(lambda: s.metrics()["vllm:num_requests_waiting"] == 3)
        assert s.request("POST", TEXT, BODY)[0] == 429
        leaving.close()
        assert post(s, "/abort_requests", {"request_ids": ["cmpl-ends"]})["aborted"] == 1
        assert aborted.result()["choices"][0]["finish_reason"] == "abort"
        wait_until(lambda: s.metrics()["vllm:num_requests_waiting"] == 1)
        assert s.metrics()["tarn:steps_total"] == steps and not waiting.done()
        post(s, "/wake_up")
        assert told(waiting.result()) == before


def running_requests_are_kept_waited_for_or_aborted() -> None:
    long = {**BODY, "max_tokens": 150, "logprobs": 1}
    with serve("--max-num-seqs", "2") as s, concurrent.futures.ThreadPoolExecutor() as pool:
        alone = [told(post(s, TEXT, {**long, "seed": seed})) for seed in (1, 2)]
        for path, wake in (("/sleep?mode=keep", "/wake_up"),
                           ("/sleep?mode=keep&level=2", "/wake_up"),
                           ("/sleep?mode=in_place", "/wake_up"),
                           ("/release_memory_occupation", "/resume_memory_occupation"),
                           ("/pause?mode=keep", "/wake_up?tags=scheduling")):
            count = s.metrics()["vllm:generation_tokens_total"]
            calls = [pool.submit(post, s, TEXT, {**long, "seed": seed}) for seed in (1, 2)]
            wait_until(lambda: s.metrics()["vllm:generation_tokens_total"] > count + 9
                       or all(c.done() for c in calls))
            post(s, path)
            post(s, wake)
            assert [told(c.result()) for c in calls] == alone, path
        for path in ("/sleep?mode=wait", "/pause?mode=wait", "/pause_generation?mode=wait"):
            calls = [pool.submit(post, s, TEXT, {**long, "seed": seed}) for seed in (1, 2)]
            wait_until(lambda: s.metrics()["vllm:num_requests_running"]
                       + sum(c.done() for c in calls) >= 2)
            assert post(s, path)
            assert [told(c.result()) for c in calls] == alone, path  # before waking
            post(s, "/wake_up")
        running = pool.submit(post, s, TEXT, {**long, "max_tokens": 900, "logprobs": None})
        wait_until(lambda: s.metrics()["vllm:num_requests_running"] > 0 or running.done())
        assert post(s, "/sleep?mode=abort")["is_sleeping"]
        assert running.result()["choices"][0]["finish_reason"] in ("abort", "length")
        post(s, "/wake_up")


def parts_sleep_and_wake_by_tag() -> None:
    with serve() as s:
        before = told(post(s, TEXT, BODY))
        post(s, "/sleep")
        assert post(s, "/sleep")["level"] == 1
        assert post(s, "/wake_up?tags=kv_cache")["asleep"] == ["weights"]
        assert post(s, "/sleep")["asleep"] == ASLEEP
        assert post(s, "/sleep?level=2")["level"] == 2
        assert post(s, "/wake_up?tags=weights")["asleep"] == ["kv_cache"]
        assert s.request("GET", "/is_paused")[2] == {"is_paused": False}
        assert post(s, "/wake_up?tags=weights&tags=kv_cache") == {"is_sleeping": False,
                                                                  "asleep": []}
        assert post(s, "/wake_up")["is_sleeping"] is False
        assert told(post(s, TEXT, BODY)) == before
        answer = post(s, "/sleep?level=0")
        assert answer == {"is_sleeping": True, "level": 0, "asleep": ["scheduling"]}, answer
        assert sleep_state(s) == [] and s.request("GET", "/is_paused")[2] == {"is_paused": True}
        assert post(s, "/release_memory_occupation", {"tags": ["kv_cache"]})["asleep"] == [
            "kv_cache", "scheduling"]
        assert post(s, "/release_memory_occupation", {"tags": ["weights"]})["asleep"] == [
            *ASLEEP, "scheduling"]
        assert post(s, "/resume_memory_occupation", {"tags": ["kv_cache", "cuda_graph"]})[
            "asleep"] == ["weights", "scheduling"]
        assert post(s, "/wake_up?tags=scheduling")["asleep"] == ["weights"]
        assert post(s, "/release_memory_occupation", {"tags": ["scheduling"]})["asleep"] == [
            "weights", "scheduling"]
        assert post(s, "/resume_memory_occupation", {"tags": ["scheduling", "weights"]})[
            "is_sleeping"] is False
        assert told(post(s, TEXT, BODY)) == before
        for path, body, param in (("/sleep?level=3", None, "level"),
                                  ("/sleep?mode=often", None, "mode"),
                                  ("/wake_up?tags=all", None, "tags"),
                                  ("/resume_memory_occupation", {"tags": "kv_cache"}, "tags")):
            status, _, answer = s.request("POST", path, body)
            assert status == 400 and answer["error"]["param"] == param, (path, status, answer)
        assert state(s)["is_sleeping"] is False


def the_load_of_many_requests_sleeps_and_goes_on() -> None:
    with serve("--max-num-seqs", "4", "--kv-host-bytes", str(KV_BYTES // 4)) as s, \
            concurrent.futures.ThreadPoolExecutor(50) as pool:
        bodies = [{**BODY, "prompt": PROMPT[i % 7:40 + i], "seed": i} for i in range(50)]
        alone = [told(post(s, TEXT, b)) for b in bodies]
        for mode in ("keep", "wait"):
            post(s, "/reset_prefix_cache")
            calls = [pool.submit(post, s, TEXT, b) for b in bodies]
            wait_until(lambda: any(c.done() for c in calls))
            post(s, f"/sleep?mode={mode}")
            if mode == "keep":
                n_done = sum(c.done() for c in calls)
                assert s.blocks_in_use() == 0, n_done
            post(s, "/wake_up")
            assert [told(c.result()) for c in calls] == alone


def kv_on_disk_outlives_level_1_alone() -> None:
    disk = ("--kv-disk-path", str(FOLDER / "kv"), "--kv-disk-bytes", "64M",
            "--kv-disk-min-uses", "1")
    with serve(*disk) as s:
        before = post(s, TEXT, BODY)
        for level in (1, 2):
            post(s, f"/sleep?level={level}")
            post(s, "/wake_up")
            again = post(s, TEXT, BODY)
            assert told(again) == told(before)
            cached = again["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert (cached > 0) == (level == 1), (level, again["usage"])


def documents_are_prefilled_after_the_sleep() -> None:
    with serve("--documents-path", str(FOLDER / "documents.db")) as s:
        for i in range(6):
            text = f"Tower {i} is high. " * 4
            document = {"text": text, "prefill": "now"}
            assert s.request("PUT", f"/v1/documents/d{i}", document)[0] < 300
        post(s, "/sleep?mode=keep")
        assert s.request("GET", "/v1/documents/d5")[0] == 200
        assert s.request("PUT", "/v1/documents/late", {"text": "Late. " * 8,
                                                       "prefill": "now"})[0] < 300
        post(s, "/wake_up")
        wait_until(lambda: s.metrics()["tarn:documents_prefilled_total"] >= 7,
                   lambda: [m for m in s.metrics().items() if "documents" in m[0]])
        assert s.metrics()["tarn:documents_prefill_failed"] == 0


def a_changed_model_stays_asleep() -> None:
    copy = FOLDER / "changed"
    shutil.copytree(MODEL, copy)
    file = copy / "model.safetensors"
    good = file.read_bytes()
    with tarn_server(copy, "--kv-device-bytes", str(KV_BYTES), "--no-profile-cost") as s, \
            concurrent.futures.ThreadPoolExecutor() as pool:
        before = told(post(s, TEXT, BODY))
        post(s, "/sleep")
        waiting = pool.submit(post, s, TEXT, BODY)
        for bad in (good[:-400] + bytes(400), None):
            file.unlink()
            if bad:
                file.write_bytes(bad)
            status, _, answer = s.request("POST", "/wake_up")
            assert status == 503 and answer["error"]["code"] == "cannot_wake_up", answer
            assert state(s)["asleep"] == ASLEEP
        file.write_bytes(good)
        post(s, "/wake_up")
        assert told(waiting.result()) == before


def an_idle_server_sleeps_until_the_next_request() -> None:
    with serve("--sleep-idle-seconds", "1") as s:
        before = told(post(s, TEXT, BODY))
        for _ in range(2):
            wait_until(lambda: state(s)["asleep"] == ASLEEP)
            assert s.request("GET", "/v1/models")[0] == 200 and state(s)["is_sleeping"]
            assert told(post(s, TEXT, BODY)) == before
        wait_until(lambda: state(s)["is_sleeping"])
        post(s, "/wake_up")


def a_signal_ends_a_server_that_sleeps() -> None:
    with serve() as s:
        post(s, "/sleep")
        assert s.stop() == 0
    with serve() as s, concurrent.futures.ThreadPoolExecutor() as pool:
        before = told(post(s, TEXT, BODY))
        post(s, "/sleep")
        waiting = pool.submit(post, s, TEXT, BODY)
        wait_until(lambda: s.metrics()["vllm:num_requests_waiting"] == 1)
        s.process.send_signal(signal.SIGTERM)
        assert told(waiting.result()) == before
        assert s.stop() == 0


def a_draft_model_sleeps_too() -> None:
    with serve("--draft-model", str(LARGE), model=LARGE) as s:
        before = told(post(s, TEXT, BODY))
        awake, weights = resident(s), (LARGE / "model.safetensors").stat().st_size
        post(s, "/sleep")
        assert awake - resident(s) > 2 * weights * 9 // 10
        post(s, "/wake_up")
        assert told(post(s, TEXT, BODY)) == before


TESTS: list[Callable[[], None]] = [
    a_sleep_gives_memory_back_and_changes_no_answer, requests_wait_and_their_clients_may_leave,
    running_requests_are_kept_waited_for_or_aborted, parts_sleep_and_wake_by_tag,
    the_load_of_many_requests_sleeps_and_goes_on, kv_on_disk_outlives_level_1_alone,
    documents_are_prefilled_after_the_sleep, a_changed_model_stays_asleep,
    an_idle_server_sleeps_until_the_next_request, a_signal_ends_a_server_that_sleeps,
    a_draft_model_sleeps_too]


def main() -> int:
    global FOLDER, MODEL, LARGE
    with tempfile.TemporaryDirectory(prefix="tarn-sleep-") as folder:
        FOLDER = Path(folder)
        MODEL = make_model(str(FOLDER / "few"), *FEW_WEIGHTS)
        LARGE = make_model(str(FOLDER / "many"), *MANY_WEIGHTS)
        return run_tests([t for t in TESTS if len(sys.argv) < 2 or t.__name__ in sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
