#!/usr/bin/env python3
"""Scheduling as users see it: policies, priorities, sessions, metrics, and the cost profile."""
from __future__ import annotations

import concurrent.futures
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from http_helpers import WAIT_SECONDS, Server, make_model, run_tests, tarn_server
import tarn_test

DEMO_MODEL = Path(__file__).resolve().parents[2] / "deploy" / "demo-model"
TEXT = "/v1/completions"
POLICIES = ("fcfs", "mlfq", "skip-join-mlfq", "sjf-prompt", "srpt")
N_LONG = 500  # tokens of an answer during which other requests arrive: 100 times as long as theirs
N_TRIES = 400
IDLE_SECONDS = 0.3  # between rounds of requests: contests run on a core that nobody else wants
# Nobody goes first for having waited.
NEVER_STARVES = ("--starvation-ms", "86400000")

MODEL: Path
FOLDER: Path


def body(n_tokens: int, **more: Any) -> dict[str, Any]:
    return {"prompt": [7 + i * 3 % 90 for i in range(40)], "max_tokens": n_tokens,
            "temperature": 0, "ignore_eos": True, "return_token_ids": True, **more}


def ids_of(answer: dict[str, Any]) -> list[int]:
    return answer["choices"][0]["token_ids"]


def settled(s: Server, n_ended: int) -> dict[str, float]:
    """The metrics, once they know of n_ended requests: an answer may be there a moment before."""
    end = time.monotonic() + WAIT_SECONDS
    while True:
        m = s.metrics()
        if m['vllm:request_success_total{finished_reason="length"}'] >= n_ended:
            return m
        assert time.monotonic() < end, m
        time.sleep(0.01)


def preempted(m: dict[str, float]) -> float:
    n = sum(m[f'tarn:preemptions_total{{reason="{reason}"}}']
            for reason in ("place", "memory", "query"))
    assert n == m["vllm:num_preemptions_total"], m
    return n


# --- policies ---

def tokens_are_the_same_under_every_policy() -> None:
    answers = []
    for policy in POLICIES:
        with tarn_server(MODEL, "--scheduling-policy", policy, "--max-num-seqs", "2") as s:
            out: list[Any] = [None] * 6

            def ask(i: int) -> None:
                out[i] = ids_of(s.post(TEXT, body(20 + 10 * i, seed=i, priority=i % 2)))

            threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(out))]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            answers.append(out)
            levels = [k for k in s.metrics() if k.startswith("tarn:sched_level_requests{")]
            assert len(levels) == 1 if policy in ("fcfs", "sjf-prompt", "srpt") else levels, policy
    assert None not in answers[0]
    assert all(a == answers[0] for a in answers[1:])


def auto_follows_the_contest_and_changes_no_token() -> None:
    """Answers of one length, more of them than places: the variant tarn serves these worst."""
    with tarn_server(MODEL, "--scheduling-policy", "auto", "--mlfq-variant", "tarn",
                     "--max-num-seqs", "2", *NEVER_STARVES) as s:
        m = s.metrics()
        assert m['tarn:sched_policy{policy="skip-join-mlfq",variant="tarn"}'] == 1, m
        assert m["tarn:sched_contests_total"] == 0, m
        assert not [k for k in m if k.startswith("tarn:sched_contest_score_seconds")], m
        alone = ids_of(s.post(TEXT, body(40)))
        end = time.monotonic() + 4 * WAIT_SECONDS
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            while m["tarn:sched_policy_changes_total"] == 0:
                assert time.monotonic() < end, m
                time.sleep(IDLE_SECONDS)
                assert all(ids_of(a) == alone
                           for a in pool.map(lambda _: s.post(TEXT, body(40)), range(64)))
                m = s.metrics()
        assert m['tarn:sched_policy{policy="skip-join-mlfq",variant="tarn"}'] == 0, m
        assert sum(v for k, v in m.items() if k.startswith("tarn:sched_policy{")) == 1, m
        assert m["tarn:sched_contests_total"] >= 2, m
        name = "tarn:sched_contest_normalized_latency_seconds"
        of = {stat: [v for k, v in m.items() if k.startswith(name) and f'stat="{stat}"' in k]
              for stat in ("mean", "p99")}
        assert len(of["mean"]) == len(of["p99"]) == 3 and min(of["mean"]) > 0, m
        assert "the scheduling policy changes" in s.log_text()
        assert "from=skip-join-mlfq" in s.log_text() and "from_variant=\"tarn\"" in s.log_text()


def a_misspelt_or_invalid_option_ends_the_start() -> None:
    cases = [
        (["--scheduling-policy", "skipjoin-mlfq"], 'did you mean "skip-join-mlfq"?'),
        (["--level-ratio", "1"], "--level-ratio: expected a number from 1.1 to 16"),
        (["--kv-swap", "off"], "--kv-swap"),
    ]
    for options, words in cases:
        run = subprocess.run([str(tarn_test.program("tarn-server")), "--model", str(MODEL),
                              "--port", "0", *options], capture_output=True, text=True,
                             timeout=tarn_test.patience(60), check=False)
        assert run.returncode == 1 and words in run.stderr, (options, run.stderr)


# --- swapping ---

def a_trained_model_says_the_same_however_often_it_is_swapped() -> None:
    def ask(s: Server, i: int) -> list[int]:
        prompt = [5 + (i * 37 + k * k) % 1500 for k in range(40 + 11 * i)]
        return ids_of(s.post(TEXT, body(60 + 17 * i, prompt=prompt)))

    n = 10
    with tarn_server(DEMO_MODEL) as s:
        alone = [ask(s, i) for i in range(n)]
    # 20 blocks on the device and 100 on the host; the longest request takes 12.
    for policy in ("skip-join-mlfq", "mlfq"):
        with tarn_server(DEMO_MODEL, "--scheduling-policy", policy, "--max-num-seqs", "3",
                         "--max-model-len", "512", "--quantum-ms", "0.5", "--kv-device-bytes",
                         "1600K", "--kv-host-bytes", "8000K") as s:
            with concurrent.futures.ThreadPoolExecutor(n) as pool:
                assert list(pool.map(lambda i: ask(s, i), range(n))) == alone, policy
            m = settled(s, n)
            assert preempted(m) > 0 and m["tarn:kv_tokens_restored_total"] > 0, m
            assert m['tarn:kv_blocks_moved_total{to="host"}'] > 0, m


# --- priorities ---

class Long:
    """An answer of N_LONG tokens in the background, which has begun."""

    def __init__(self, s: Server) -> None:
        self.answer: dict[str, Any] = {}
        self.thread = threading.Thread(target=self.run, args=(s,))
        self.thread.start()
        s.wait_blocks(lambda n: n > 0)

    def run(self, s: Server) -> None:
        self.answer = s.post(TEXT, body(N_LONG))

    def is_running(self) -> bool:
        return self.thread.is_alive()

    def ids(self) -> list[int]:
        self.thread.join()
        return ids_of(self.answer)


def a_more_important_request_gets_the_only_place_at_once() -> None:
    for policy in ("fcfs", "skip-join-mlfq"):
        # A quantum of a minute: no request uses it up, even on a slow machine.
        with tarn_server(MODEL, "--max-num-seqs", "1", "--scheduling-policy", policy,
                         "--quantum-ms", "60000", *NEVER_STARVES) as s:
            alone = ids_of(s.post(TEXT, body(N_LONG)))
            n_preempted, n_done = 0.0, 1
            # A fast machine may end the long answer before the other request comes: then again.
            while n_preempted == 0:
                running = Long(s)
                s.post(TEXT, body(4, priority=-1))
                is_running = running.is_running()
                assert running.ids() == alone, policy
                n_done += 2
                n_preempted = preempted(settled(s, n_done))
                assert n_done < N_TRIES, policy
            assert is_running and n_preempted == 1, policy
            # A less important request runs when the place is free.
            running = Long(s)
            s.post(TEXT, body(4, priority=1))
            assert running.ids() == alone, policy
            assert preempted(settled(s, n_done + 2)) == n_preempted, policy


# --- sessions ---

def a_session_is_taken_and_a_wrong_one_named() -> None:
    with tarn_server(MODEL) as s:
        plain = ids_of(s.post(TEXT, body(8)))
        for session in ("a", "agent 7", "\u20ac" * 85, "x" * 256, None):
            assert ids_of(s.post(TEXT, body(8, session_id=session))) == plain, session
        for wrong in (7, True, [], {}, "", "x" * 257):
            status, _, answer = s.request("POST", TEXT, body(1, session_id=wrong))
            assert status == 400 and answer["error"]["param"] == "session_id", (wrong, answer)


# --- metrics ---

def steps_are_measured() -> None:
    with tarn_server(MODEL) as s:
        s.post(TEXT, body(50))
        m = settled(s, 1)
        n = m["tarn:steps_total"]
        n_guessed = m['vllm:spec_decode_num_accepted_tokens_total{source="lookup"}']
        assert m["tarn:step_seconds_count"] == n >= 50 - n_guessed, m
        assert m["tarn:step_seconds_sum"] > 0 <= m["tarn:step_gap_seconds_sum"], m
        assert 0 <= m["tarn:plans_ahead_total"] <= n, m
        assert m["tarn:cost_model_relative_error"] >= 0, m
        assert m["tarn:sched_starvation_seconds"] >= 0.3, m
        quanta = [v for k, v in m.items() if k.startswith("tarn:sched_level_quantum_seconds{")]
        assert quanta == sorted(quanta) and quanta[0] > 0, quanta
        requests = [v for k, v in m.items() if k.startswith("tarn:sched_level_requests{")]
        assert requests == [0] * len(quanta), requests
        for when in ("ahead", "on_demand"):
            assert m[f'tarn:kv_blocks_spilled_total{{when="{when}"}}'] == 0, m
            assert m[f'tarn:kv_blocks_fetched_total{{when="{when}"}}'] == 0, m
        assert m["tarn:kv_blocks_recomputed_total"] == 0, m


# --- what steps cost ---

def the_profile_is_measured_once_and_kept_for_us_alone() -> None:
    cost = FOLDER / "cache" / "cost"
    options = ("--profile-cost", "--cache-dir", str(FOLDER / "cache"))
    with tarn_server(MODEL, *options):
        assert oct(cost.stat().st_mode & 0o7777) == "0o700"
        files = sorted(cost.iterdir())
        assert files
    with tarn_server(MODEL, *options) as s:
        assert "measured costs are not kept" not in s.log_text()
    assert sorted(cost.iterdir()) == files


def without_a_cache_dir_the_profile_is_not_kept_and_the_log_says_so() -> None:
    with tarn_server(MODEL, "--profile-cost", "--cache-dir", "/proc/nowhere") as s:
        assert "measured costs are not kept" in s.log_text()
        s.post(TEXT, body(1))
    with tarn_server(MODEL, "--no-profile-cost", "--cache-dir", str(FOLDER / "other")) as s:
        assert not (FOLDER / "other" / "cost").exists()
        assert "measured costs" not in s.log_text()
        s.post(TEXT, body(1))


def main() -> int:
    global MODEL, FOLDER
    with tempfile.TemporaryDirectory() as folder:
        FOLDER = Path(folder)
        MODEL = make_model(folder, "--max-pos", "4096", "--layers", "4", "--dim", "128")
        return run_tests([
            tokens_are_the_same_under_every_policy,
            auto_follows_the_contest_and_changes_no_token,
            a_trained_model_says_the_same_however_often_it_is_swapped,
            a_misspelt_or_invalid_option_ends_the_start,
            a_more_important_request_gets_the_only_place_at_once,
            a_session_is_taken_and_a_wrong_one_named,
            steps_are_measured,
            the_profile_is_measured_once_and_kept_for_us_alone,
            without_a_cache_dir_the_profile_is_not_kept_and_the_log_says_so,
        ])


if __name__ == "__main__":
    sys.exit(main())
