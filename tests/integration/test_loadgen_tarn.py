#!/usr/bin/env python3
"""tarn-loadgen against tarn-server with the demo model: every workload, cache hits, equal texts."""
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from http_helpers import Server  # noqa: E402
from loadgen_helpers import loadgen, write_lines  # noqa: E402
from tarn_test import REPO, program  # noqa: E402

USUAL = ("--output-len", 8, "--ignore-eos", "--ready-timeout", 60)


def check(seen, n):
    assert seen.json["completed"] == n and seen.json["failed"] == 0, seen.json["errors_by_kind"]
    assert seen.json["total_output_tokens"] == 8 * n, seen.json["total_output_tokens"]
    return seen.json


def lengths_are_as_asked(url):
    """By /tokenize within a few percent, by token ids exactly."""
    r = check(loadgen(url, "--rate", 20, "--count", 20, "--input-len", 400, *USUAL), 20)
    assert r["calibration"] == "tokenize"
    assert 0.95 * 8000 < r["prompt_tokens"] < 1.05 * 8000, r["prompt_tokens"]
    seen = loadgen(url, "--rate", 20, "--count", 10, "--input-len", 100, "--prompt-format", "ids",
                   *USUAL)
    assert {x["prompt_tokens"] for x in seen.raw} <= {100, 101}  # with or without BOS


def prefixes_are_found_again(url):
    r = check(loadgen(url, "--workload", "prefix", "--num-prefixes", 2, "--prefix-len", 320,
                      "--input-len", 40, "--concurrency", 2, "--count", 20, *USUAL), 20)
    assert r["cached_tokens"] > 0.5 * r["prompt_tokens"], (r["cached_tokens"], r["prompt_tokens"])
    r = check(loadgen(url, "--workload", "random", "--input-len", 360, "--concurrency", 2,
                      "--count", 10, *USUAL), 10)
    assert r["cached_tokens"] < 0.1 * r["prompt_tokens"], "random prompts share nothing"


def documents_are_found_again_either_way(url):
    for how in ("field", "text"):
        r = check(loadgen(url, "--workload", "rag", "--num-documents", 6, "--document-len", 150,
                          "--concurrency", 2, "--count", 24, "--documents-as", how, *USUAL), 24)
        assert r["cached_tokens"] > 0.2 * r["prompt_tokens"], (how, r["cached_tokens"])


def conversations_grow_in_the_cache(url):
    seen = loadgen(url, "--workload", "multiturn", "--turns", 4, "--think-time", 0, "--input-len",
                   60, "--history", "real", "--concurrency", 2, "--count", 16, *USUAL)
    check(seen, 16)
    later = [x for x in seen.raw if x["turn"] >= 2]
    assert later and all(x["cached_tokens"] > 0 for x in later)


def traces_and_files_are_replayed(url):
    with tempfile.TemporaryDirectory() as folder:
        rows = [{"timestamp": 200 * i, "input_length": 1100, "output_length": 5,
                 "hash_ids": [1, 2, 100 + i]} for i in range(6)]
        r = check(loadgen(url, "--workload", "trace", "--data",
                          write_lines(folder, "trace.jsonl", rows), *USUAL), 6)
        assert r["cached_tokens"] >= 4 * 900, r["cached_tokens"]
        rows = [{"prompt": f"Hello {i}", "output_len": 8} for i in range(5)]
        check(loadgen(url, "--workload", "file", "--data", write_lines(folder, "f.jsonl", rows),
                      "--rate", 50, "--ignore-eos"), 5)


def texts_are_equal_alone_and_under_load(url):
    for workload in ("rag", "prefix", "mix"):
        seen = loadgen(url, "--workload", workload, "--rate", 40, "--count", 20, "--input-len",
                       "uniform:20:300", "--verify", 0.4, "--max-input-len", 400,
                       "--max-output-len", 24, "--seed", 4)
        v = seen.json["verify"]
        assert v["checked"] >= 4 and v["cold"] and v["failed"] == 0, v
        assert v["load_differs"] == v["warm_differs"] == 0, v


def main():
    server = Server([str(program("tarn-server")), "--model", str(REPO / "deploy" / "demo-model"),
                     "--port", "0", "--threads", "1"])
    try:
        for case in (lengths_are_as_asked, prefixes_are_found_again,
                     documents_are_found_again_either_way, conversations_grow_in_the_cache,
                     traces_and_files_are_replayed, texts_are_equal_alone_and_under_load):
            begin = time.monotonic()
            case(server.url)
            print(f"ok {case.__name__} ({time.monotonic() - begin:.1f} s)", flush=True)
    finally:
        server.process.terminate()
        server.process.wait()


if __name__ == "__main__":
    main()
