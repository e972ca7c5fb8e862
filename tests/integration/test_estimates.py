#!/usr/bin/env python3
"""Predictions and targets as a client of a real server sees them."""
from __future__ import annotations

import concurrent.futures
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

from http_helpers import Server, make_model, run_tests, tarn_server, wait_until

TEXT = "/v1/completions"
TTFT, E2E = "x-tarn-estimated-ttft-ms", "x-tarn-estimated-e2e-ms"
HOUR_MS = 3_600_000

MODEL: Path


def body(n_tokens: int, **more: Any) -> dict[str, Any]:
    return {"prompt": [7 + i * 3 % 90 for i in range(40)], "max_tokens": n_tokens,
            "temperature": 0, "ignore_eos": True, **more}


def finished(s: Server, n: int) -> dict[str, float]:
    """The metrics after the n-th end: an answer may be there a moment before."""
    name = "tarn:estimate_e2e_error_count"
    wait_until(lambda: s.metrics()[name] >= n, lambda: s.metrics()[name])
    return s.metrics()


def answers_and_streams_carry_predictions() -> None:
    with tarn_server(MODEL) as s:
        for i, more in enumerate(({}, {"stream": True}, {"n": 3}, {"logprobs": 1})):
            status, headers, answer = s.request("POST", TEXT, body(5, **more))
            assert status == 200, answer
            assert 0 < float(headers[TTFT]) <= float(headers[E2E]), headers
        m = finished(s, 6)
        assert m["tarn:estimate_ttft_error_count"] == m["tarn:estimate_e2e_error_count"] == 6, m
        assert m['tarn:estimate_factor{of="ttft",waits="false",quantile="0.5"}'] > 0


def a_prompt_without_an_answer_is_predicted() -> None:
    with tarn_server(MODEL) as s:
        status, headers, answer = s.request("POST", TEXT, body(0, stream=True))
        assert status == 200 and float(headers[TTFT]) > 0, (headers, answer)
        m = finished(s, 1)
        assert m["tarn:estimate_ttft_error_count"] == 0  # it has no first token


def a_longer_request_is_predicted_later() -> None:
    # A directory of its own: lengths of answers that other runs learned would predict both alike.
    with tempfile.TemporaryDirectory() as folder, \
            tarn_server(MODEL, "--cache-dir", folder) as s:
        ask = "/v1/estimate?prompt_tokens={}&cached_tokens={}&max_tokens={}"
        short, cached, long, talks = (
            s.request("GET", ask.format(*x))[2]
            for x in ((20, 0, 5), (300, 290, 5), (300, 0, 5), (20, 0, 200)))
        for e in (short, cached, long, talks):
            assert 0 < e["ttft_ms"]["p50"] <= e["ttft_ms"]["p90"] <= e["e2e_ms"]["p90"], e
            assert e["accuracy"] == {"requests": 0, "ttft_median_error": None,
                                     "e2e_median_error": None}, e
            assert e["queue"] == {"running": 0, "waiting": 0, "ahead": 0}, e
        assert short["ttft_ms"]["p50"] <= long["ttft_ms"]["p50"]
        assert cached["ttft_ms"]["p50"] <= long["ttft_ms"]["p50"]
        assert short["e2e_ms"]["p50"] < talks["e2e_ms"]["p50"]


def wrong_queries_are_refused() -> None:
    with tarn_server(MODEL) as s:
        for query in ("", "?prompt_tokens=0", "?prompt_tokens=x", "?prompt_tokens=99999999",
                      "?prompt_tokens=5&cached_tokens=6", "?prompt_tokens=5&max_tokens=-1"):
            status, _, answer = s.request("GET", "/v1/estimate" + query)
            assert status == 400 and answer["error"]["param"], (query, status, answer)
        assert s.request("POST", "/v1/estimate", {})[0] == 405


def a_full_queue_answers_with_the_prediction() -> None:
    """One request runs, one waits, and the third is refused."""
    with tarn_server(MODEL, "--max-num-seqs", "1", "--max-num-queued-reqs", "1",
                     "--scheduling-policy", "fcfs") as s:
        sockets = []

        def is_full() -> bool:  # requests that ended before anyone looked are asked again
            m = s.metrics()
            n = int(m["vllm:num_requests_running"] + m["vllm:num_requests_waiting"])
            sockets.extend(s.open_raw(TEXT, body(400, stream=True)) for _ in range(2 - n))
            return n == 2
        wait_until(is_full)
        ahead = s.request("GET", "/v1/estimate?prompt_tokens=10")[2]["queue"]
        status, headers, answer = s.request("POST", TEXT, body(1))
        refused = status == 429
        for x in sockets:
            x.close()
        if not refused:  # a fast machine has answered one of them meanwhile
            return
        assert ahead["ahead"] <= 2 and 1 <= int(headers["retry-after"]) <= 600, headers
        assert answer["error"]["code"] == "rate_limit_exceeded", answer


def targets_are_counted() -> None:
    with tarn_server(MODEL, "--slo-tpot-ms", str(HOUR_MS), "--trust-router-headers") as s:
        def send(more: dict[str, Any], headers: dict[str, str]) -> None:
            status, _, answer = s.request("POST", TEXT, body(4, **more), headers)
            assert status == 200, answer
        send({}, {"x-llm-d-slo-ttft-ms": str(HOUR_MS)})
        send({"slo_ttft_ms": HOUR_MS}, {"x-llm-d-slo-ttft-ms": "0.0001"})  # the header wins
        send({"slo_ttft_ms": HOUR_MS, "slo_tpot_ms": 0.0001}, {})
        send({"slo_tpot_ms": 0}, {})  # no target at all
        m = finished(s, 4)

        def count(target: str) -> tuple[float, float]:
            return tuple(m[f'tarn:slo_requests_total{{target="{target}",result="{r}"}}']
                         for r in ("met", "missed"))
        assert count("ttft") == (2, 1), m
        assert count("tpot") == (2, 1), m
        assert count("all") == (1, 2), m
        assert m["tarn:slo_rejected_total"] == 0
        assert s.request("POST", TEXT, body(1), {"x-llm-d-slo-tpot-ms": "quick"})[0] == 400
        assert s.request("POST", TEXT, body(1, slo_ttft_ms=-1))[0] == 400


def a_target_that_cannot_be_met_is_refused_on_demand() -> None:
    with tarn_server(MODEL, "--slo-admission", "reject") as s:
        for more in ({}, {"stream": True}):
            status, headers, answer = s.request("POST", TEXT, body(4, slo_ttft_ms=0.0001, **more))
            assert status == 429 and 1 <= int(headers["retry-after"]) <= 600, (status, headers)
            assert answer["error"]["code"] == "slo_unattainable", answer
        assert s.request("POST", TEXT, body(4, slo_ttft_ms=HOUR_MS))[0] == 200
        assert s.request("POST", TEXT, body(4, slo_tpot_ms=0.0001))[0] == 200
        m = finished(s, 2)
        assert m["tarn:slo_rejected_total"] == 2, m
        assert m['tarn:kv_blocks{state="in_use"}'] == 0, m
        assert m["vllm:num_requests_waiting"] == 0, m


def estimates_are_answered_while_requests_run() -> None:
    with tarn_server(MODEL, "--max-num-seqs", "2") as s:
        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            work = [pool.submit(s.post, TEXT, body(60, stream=i % 2 == 0, n=1)) for i in range(8)]
            asks = [pool.submit(s.request, "GET", "/v1/estimate?prompt_tokens=30&max_tokens=9")
                    for _ in range(30)]
            for ask in asks:
                status, _, e = ask.result()
                assert status == 200 and math.isfinite(e["e2e_ms"]["p90"]), e
            for w in work:
                w.result()
        assert finished(s, 8)["tarn:kv_blocks_leaked"] == 0


def main() -> int:
    global MODEL
    with tempfile.TemporaryDirectory(prefix="tarn-estimates-") as folder:
        MODEL = make_model(folder)
        return run_tests([answers_and_streams_carry_predictions,
                          a_prompt_without_an_answer_is_predicted,
                          a_longer_request_is_predicted_later, wrong_queries_are_refused,
                          a_full_queue_answers_with_the_prediction, targets_are_counted,
                          a_target_that_cannot_be_met_is_refused_on_demand,
                          estimates_are_answered_while_requests_run])


if __name__ == "__main__":
    sys.exit(main())
