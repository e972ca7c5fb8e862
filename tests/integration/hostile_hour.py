#!/usr/bin/env python3
"""Many hostile clients attack a server for an hour: no wrong answer, no leak, quick health checks.

    hostile_hour.py [--seconds 3600] [--clients 64] [--seed 1] [--health-ms 100] [--growth 0.05]
                    [--settle 12]

Clients run the attacks of hostile_attacks.py in a random order, from several processes, while
another process requests /health/live ten times a second. The test passes if no attack raised Wrong,
every health answer came within --health-ms, no KV block leaked, and resident memory grew by at most
--growth. The growth is measured between two pauses: after a quarter of the time, and at the end. A
line per minute shows the progress.
"""
from __future__ import annotations

import argparse
import collections
import json
import multiprocessing as mp
import os
import queue
import random
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import hostile_attacks as attacks
from http_helpers import REPO, Server, tarn_server

DEMO_MODEL = REPO / "deploy" / "demo-model"
N_PROCESSES = 4
ADMIN_KEY = "sk-admin"
TENANT_KEYS = ["sk-tenant-a", "sk-tenant-b"]


# --- clients, in processes of their own -----------------------------------------------------

def run_client(target: attacks.Target, rng: random.Random, end: Any, results: Any) -> None:
    names, weights = zip(*attacks.ATTACKS)
    while not end.is_set():
        attack = rng.choices(names, weights)[0]
        began = time.monotonic()
        wrong, statuses = "", []
        try:
            statuses = attack(target, rng)
        except attacks.Wrong as error:
            wrong = str(error)
        except OSError as error:  # no connection to be had: the server may be full
            statuses = [-(error.errno or 1)]
        results.put((attack.__name__, statuses, time.monotonic() - began, wrong))
        time.sleep(rng.uniform(0, 0.1))


def run_clients(target: attacks.Target, n: int, seed: int, end: Any, results: Any) -> None:
    threads = [threading.Thread(target=run_client, daemon=True,
                                args=(target, random.Random(seed * 1_000_003 + i), end, results))
               for i in range(n)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(timeout=None if not end.is_set() else attacks.SECONDS)


def run_probe(port: int, end: Any, times: Any) -> None:
    """Ask /health/live on a new connection ten times a second; put (when, seconds or -1)."""
    try:
        os.nice(-10)  # the server is measured, not how busy this machine keeps its clients
    except PermissionError:
        pass
    target = attacks.Target(port, ["none"])
    while not end.is_set():
        began = time.monotonic()
        try:
            with attacks.connect(target) as s:
                s.sendall(b"GET /health/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                ok = attacks.split(attacks.read_all(s)).status == 200
        except (OSError, attacks.Wrong):
            ok = False
        seconds = time.monotonic() - began
        times.put((began, seconds if ok else -1.0))
        time.sleep(max(0.0, 0.1 - seconds))


# --- the hour -------------------------------------------------------------------------------

class Tally:
    """The reports of the clients and of the probe."""

    def __init__(self) -> None:
        self.count: collections.Counter[str] = collections.Counter()
        self.status: dict[str, collections.Counter[int]] = collections.defaultdict(
            collections.Counter)
        self.longest: dict[str, float] = collections.defaultdict(float)
        self.wrong: collections.Counter[str] = collections.Counter()
        self.health: list[float] = []

    def drain(self, results: Any, times: Any) -> None:
        try:
            while True:
                name, statuses, seconds, wrong = results.get_nowait()
                self.count[name] += 1
                self.status[name].update(statuses)
                self.longest[name] = max(self.longest[name], seconds)
                if wrong:
                    self.wrong[f"{name}: {wrong[:300]}"] += 1
        except queue.Empty:
            pass
        try:
            while True:
                self.health.append(times.get_nowait()[1])
        except queue.Empty:
            pass

    def health_line(self, bound_ms: float) -> str:
        good = sorted(s for s in self.health if s >= 0)
        late = sum(s * 1e3 > bound_ms for s in good) + sum(s < 0 for s in self.health)
        if not good:
            return "health: no answer"
        at = {p: good[min(len(good) - 1, int(p * len(good)))] * 1e3 for p in (0.5, 0.99, 0.999)}
        return (f"health: {len(self.health)} asked, median {at[0.5]:.1f} ms, P99 {at[0.99]:.1f}, "
                f"P99.9 {at[0.999]:.1f}, longest {good[-1] * 1e3:.1f}, "
                f"{late} beyond {bound_ms:.0f} ms or none")

    def n_late(self, bound_ms: float) -> int:
        return sum(s < 0 or s * 1e3 > bound_ms for s in self.health)

    def print_table(self) -> None:
        print(f"\n{'attack':26} {'times':>7} {'longest s':>9}  answers")
        for name in sorted(self.count):
            seen = " ".join(f"{k}:{n}" for k, n in sorted(self.status[name].items()))
            print(f"{name:26} {self.count[name]:7} {self.longest[name]:9.2f}  {seen}")
        for words, n in self.wrong.most_common(20):
            print(f"WRONG x{n}  {words}")


class Hour:
    """A server, its clients, and the measurements between two pauses."""

    def __init__(self, args: argparse.Namespace, server: Server) -> None:
        self.args, self.server = args, server
        self.tally = Tally()
        self.target = attacks.Target(server.port, TENANT_KEYS)
        self.context = mp.get_context("spawn")
        self.results, self.times = self.context.Queue(), self.context.Queue()
        self.began = time.monotonic()

    def learn_answers(self) -> None:
        """The answers to the well-formed questions, without any other client."""
        rng = random.Random(0)
        for _ in range(40):
            body = attacks.question(rng)
            reply = attacks.ask(self.target, rng, attacks.CHAT, body)
            text = reply.json()["choices"][0]["message"]["content"]
            asked = body["messages"][0]["content"]
            if self.target.greedy.setdefault(asked, text) != text:
                raise SystemExit(f"two answers to {asked} before the hour began")

    def metric(self, name: str) -> float:
        _, _, text = self.server.request("GET", "/metrics",
                                         headers={"Authorization": f"Bearer {ADMIN_KEY}"})
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines()
                   if line.startswith(name))

    def run(self, seconds: float, seed: int) -> None:
        """Attack for so long, then let everything end."""
        end, n = self.context.Event(), self.args.clients
        each = [n // N_PROCESSES + (i < n % N_PROCESSES) for i in range(N_PROCESSES)]
        workers = [self.context.Process(target=run_clients, daemon=True,
                                        args=(self.target, k, seed * 1000 + i, end, self.results))
                   for i, k in enumerate(each) if k]
        workers.append(self.context.Process(target=run_probe, daemon=True,
                                            args=(self.server.port, end, self.times)))
        for w in workers:
            w.start()
        stop_at, next_line = time.monotonic() + seconds, time.monotonic() + 60
        while time.monotonic() < stop_at and self.server.process.poll() is None:
            time.sleep(0.5)
            self.tally.drain(self.results, self.times)
            if time.monotonic() >= next_line:
                next_line += 60
                self.print_progress()
        end.set()
        give_up = time.monotonic() + 2 * attacks.SECONDS
        while any(w.is_alive() for w in workers) and time.monotonic() < give_up:
            self.tally.drain(self.results, self.times)
            time.sleep(0.1)
        for w in workers:
            w.kill()
        self.tally.drain(self.results, self.times)

    def print_progress(self) -> None:
        print(f"{time.monotonic() - self.began:6.0f} s  {self.tally.count.total()} attacks, "
              f"{self.tally.wrong.total()} wrong, {self.rss() / 2**20:.0f} MiB, "
              f"{self.tally.health_line(self.args.health_ms)}", flush=True)

    def rss(self) -> int:
        text = Path(f"/proc/{self.server.process.pid}/status").read_text()
        return int(text.split("VmRSS:")[1].split()[0]) * 1024

    def settle(self) -> int:
        """Wait until nothing runs and freed memory is back; return resident bytes."""
        deadline = time.monotonic() + 120
        while self.metric("vllm:num_requests_running") > 0:
            if time.monotonic() > deadline:
                raise SystemExit("requests still run two minutes after their clients left")
            time.sleep(0.2)
        # The server gives memory back only after a period in which something ran.
        attacks.an_honest_question(self.target, random.Random(0))
        time.sleep(self.args.settle)
        return self.rss()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--health-ms", type=float, default=100)
    parser.add_argument("--growth", type=float, default=0.05)
    parser.add_argument("--settle", type=float, default=12, help="seconds of a pause; the server "
                        "gives freed memory back every 10 s (server/main.c, SUMMARY_NS)")
    args = parser.parse_args()
    # The sanitizer's own store of freed memory would hide how much the server holds.
    os.environ["ASAN_OPTIONS"] = (os.environ.get("ASAN_OPTIONS", "detect_leaks=1")
                                  + ":quarantine_size_mb=8")
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys.json"
        keys.write_text(json.dumps({"keys": [
            {"name": f"key-{k[-1]}", "key": k, "tenant": k[3:]} for k in TENANT_KEYS]}))
        keys.chmod(0o600)
        with tarn_server(DEMO_MODEL, "--api-key-file", str(keys), "--admin-api-key", ADMIN_KEY,
                         "--cache-dir", folder, "--kv-device-bytes", "32M", "--log-level", "warn",
                         "--max-num-queued-reqs", "512") as server:
            hour = Hour(args, server)
            hour.learn_answers()
            hour.run(args.seconds / 4, args.seed)
            first = hour.settle()
            hour.run(args.seconds * 3 / 4, args.seed + 1)
            last = hour.settle()
            leaked = hour.metric("tarn:kv_blocks_leaked")
            in_use = hour.metric('tarn:kv_blocks{state="in_use"')
            log_bytes = Path(server.log.name).stat().st_size
    tally, growth = hour.tally, last / first - 1
    tally.print_table()
    print(f"\n{tally.count.total()} attacks by {args.clients} clients in {args.seconds:.0f} s: "
          f"{tally.wrong.total()} wrong, {leaked:.0f} blocks leaked, {in_use:.0f} in use, "
          f"RSS {first / 2**20:.1f} -> {last / 2**20:.1f} MiB ({growth:+.1%}), "
          f"log {log_bytes / 2**10:.0f} KiB\n{tally.health_line(args.health_ms)}")
    bad = (tally.wrong.total() or leaked or in_use or growth > args.growth
           or tally.n_late(args.health_ms) or not tally.health)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
