#!/usr/bin/env python3
"""Mixed requests from many clients: no error, no leaked block, no growth.

    soak_mixed.py [--requests 1000] [--clients 64] [--warm 200] [--max-growth 0.01] [--seed 1]

Chat and completions, streamed and whole, short and long prompts (some repeated, some with
documents), n, logprobs, stops, and clients that leave. Resident memory after --warm requests is
compared with that at the end, both taken when nothing runs.
"""
from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from http_helpers import REPO, Server, make_model, tarn_server

# The server gives freed memory back every 10 s (server/main.c, SUMMARY_S).
SETTLE_SECONDS = 11
DEMO_MODEL = REPO / "deploy" / "demo-model"
WORDS = ("the server answers the question with documents and streams tokens to the client until "
         "where is the red house and who lives there with the old dog in the garden").split()


def words(rng: random.Random, n: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(n))


def make_body(rng: random.Random) -> tuple[str, dict[str, Any]]:
    body: dict[str, Any] = {"max_tokens": rng.choice([1, 4, 16, 48]), "seed": rng.randrange(1000),
                            "temperature": rng.choice([0, 0.7, 1.0]),
                            "priority": rng.choice([0, 0, -1, 5])}
    if rng.random() < 0.2:
        body["n"] = rng.randint(2, 4)
    if rng.random() < 0.3:
        body["stop"] = rng.choice(["e", ["the", " dog"]])
    if rng.random() < 0.2:
        body |= {"presence_penalty": 0.5, "top_k": 40, "top_p": 0.95}
    shared = "the same beginning for many requests " * 12 if rng.random() < 0.5 else ""
    text = shared + words(rng, rng.choice([2, 20, 120]))
    if rng.random() < 0.35:
        body["prompt"] = text
        if rng.random() < 0.2:
            body["logprobs"] = 3
        return "/v1/completions", body
    body["messages"] = [{"role": "user", "content": text}]
    if rng.random() < 0.3:
        body["documents"] = [{"title": f"d{i}", "text": "document number %d " % i * 10}
                             for i in rng.sample(range(8), 2)]
    if rng.random() < 0.2:
        body |= {"logprobs": True, "top_logprobs": 2}
    return "/v1/chat/completions", body


class Soak:
    def __init__(self, server: Server, clients: int, seed: int) -> None:
        self.server, self.clients, self.seed = server, clients, seed
        self.lock = threading.Lock()
        self.next, self.end = 0, 0
        self.errors: list[str] = []
        self.n_left = 0

    def one(self, index: int) -> None:
        rng = random.Random(self.seed * 1_000_003 + index)
        path, body = make_body(rng)
        kind = rng.random()
        if kind < 0.08:
            s = self.server.open_raw(path, {**body, "stream": kind < 0.04, "max_tokens": 300,
                                            "ignore_eos": True})
            time.sleep(rng.uniform(0, 0.05))
            s.close()
            with self.lock:
                self.n_left += 1
        elif kind < 0.55:
            frames, _ = self.server.stream(path, body)
            assert frames and not any("error" in f for f in frames), frames[-1]
            ends = [c for f in frames for c in f["choices"] if c["finish_reason"]]
            assert len(ends) == body.get("n", 1), ends
        else:
            answer = self.server.post(path, body)
            assert len(answer["choices"]) == body.get("n", 1)
            assert all(c["finish_reason"] in ("stop", "length") for c in answer["choices"])

    def client(self) -> None:
        while True:
            with self.lock:
                if self.next >= self.end:
                    return
                index = self.next
                self.next += 1
            try:
                self.one(index)
            except Exception as error:
                with self.lock:
                    self.errors.append(f"request {index}: {type(error).__name__} {error}")

    def run_until(self, end: int) -> float:
        """Resident bytes afterwards."""
        self.end = end
        threads = [threading.Thread(target=self.client) for _ in range(self.clients)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.server.wait_blocks(lambda n: n == 0)
        time.sleep(SETTLE_SECONDS)
        return self.server.metrics()["tarn:process_resident_bytes"]


def choose_model(folder: str) -> Path:
    """TARN_TEST_MODEL, else the demo model: a share of a tiny model's 20 MiB would be too small."""
    if "TARN_TEST_MODEL" not in os.environ and (DEMO_MODEL / "model.safetensors").is_file():
        return DEMO_MODEL
    return make_model(folder)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--warm", type=int, default=200)
    parser.add_argument("--max-growth", type=float, default=0.01)
    parser.add_argument("--kv", default="24M", help="small, so that all of it is used early on")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if args.requests <= args.warm:
        parser.error("--requests must exceed --warm")
    with tempfile.TemporaryDirectory() as folder:
        model = choose_model(folder)
        with tarn_server(model, "--kv-device-bytes", args.kv, "--log-level", "warn") as server:
            soak = Soak(server, args.clients, args.seed)
            start = time.monotonic()
            warm = soak.run_until(args.warm)
            last = soak.run_until(args.requests)
            seconds = time.monotonic() - start
            metrics = server.metrics()
    growth = last / warm - 1
    leaked = metrics["tarn:kv_blocks_leaked"]
    print(f"{args.requests} requests, {args.clients} clients, {soak.n_left} left early, "
          f"{seconds:.1f} s: {len(soak.errors)} errors, {leaked:.0f} leaked blocks, "
          f"RSS {warm / 2**20:.1f} -> {last / 2**20:.1f} MiB ({growth:+.2%})")
    for error in soak.errors[:10]:
        print("  " + error)
    return 1 if soak.errors or leaked or growth > args.max_growth else 0


if __name__ == "__main__":
    sys.exit(main())
