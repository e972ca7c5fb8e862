#!/usr/bin/env python3
"""router.py - an HTTP front end before several servers, one process, one thread.

    router.py --policy round-robin|hash|precise --instances URL,URL,... [--events ADDRESS,...]

`round-robin` and `hash` (consistent hashing of the prompt's beginning) know nothing about the
servers. `precise` follows the KV events of each server and sends a request where most of its prompt
lies and little waits (kv_view.py). POST goes to an instance by the policy; other methods and
/tokenize go to the first one. `GET /router` has counts and times as JSON. Connections to servers
stay open. Prints the URL that it listens at; ends at SIGTERM.
"""
from __future__ import annotations

import argparse
import asyncio
import bisect
import hashlib
import json
import resource
import signal
import sys
import time
from pathlib import Path
from typing import AsyncIterator

sys.path.insert(0, str(Path(__file__).resolve().parent))
from kv_view import KvView, follow  # noqa: E402
from workloads import hash_key  # noqa: E402

LIMIT = 1 << 20
RING_POINTS = 128
# Of a precise choice: the share of the prompt that an instance holds against the share of the
# longest queue that waits there, as in the default profiles of llm-d's scheduler.
PREFIX_WEIGHT, QUEUE_WEIGHT = 3, 2
RENDER = "/render"


class Instance:
    def __init__(self, url: str) -> None:
        host, port = url.removeprefix("http://").rstrip("/").rsplit(":", 1)
        self.host, self.port = host, int(port)
        self.idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self.n_requests = self.n_in_flight = 0
        self.view = KvView()

    async def connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while self.idle:
            reader, writer = self.idle.pop()
            if not reader.at_eof() and not writer.is_closing():
                return reader, writer
        return await asyncio.open_connection(self.host, self.port, limit=LIMIT)

    async def ask(self, head: bytes, body: bytes) -> AsyncIterator[bytes]:
        """The answer's bytes as they come: first its head, alone."""
        reader, writer = await self.connection()
        writer.write(head + body)
        first = await reader.readuntil(b"\r\n\r\n")
        yield first
        fields = first.lower()
        if b"transfer-encoding: chunked" in fields:
            while True:
                line = await reader.readuntil(b"\r\n")
                n = int(line.split(b";")[0], 16)
                yield line + await reader.readexactly(n + 2)
                if n == 0:
                    break
        else:
            n = int(field_of(fields, b"content-length") or 0)
            if n:
                yield await reader.readexactly(n)
        if b"connection: close" in fields:
            writer.close()
        else:
            self.idle.append((reader, writer))


def field_of(head: bytes, name: bytes) -> bytes | None:
    """The value of a field; head in lower case."""
    at = head.find(b"\r\n" + name + b":")
    return head[at:].split(b"\r\n", 2)[1].split(b":", 1)[1].strip() if at >= 0 else None


def request_bytes(path: str, body: bytes) -> bytes:
    return (f"POST {path} HTTP/1.1\r\nHost: tarn\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n").encode()


# --- policies ---

class RoundRobin:
    def __init__(self, instances: list[Instance]) -> None:
        self.instances, self.n = instances, 0

    async def choose(self, path: str, body: bytes) -> Instance:
        self.n += 1
        return self.instances[(self.n - 1) % len(self.instances)]


class ConsistentHash:
    def __init__(self, instances: list[Instance]) -> None:
        self.ring = sorted((place(f"{i}.{k}"), i) for i in range(len(instances))
                           for k in range(RING_POINTS))
        self.instances = instances

    def place_of(self, request: dict) -> int:
        """The number of the instance."""
        at = bisect.bisect(self.ring, (place(hash_key(request)),))
        return self.ring[at % len(self.ring)][1]

    async def choose(self, path: str, body: bytes) -> Instance:
        return self.instances[self.place_of(json.loads(body))]


def place(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


class Precise(RoundRobin):
    """Token ids come from the servers' own rendering, so that they are those of the events."""

    async def choose(self, path: str, body: bytes) -> Instance:
        renderer = await super().choose(path, body)
        ids = await rendered(renderer, path + RENDER, body)
        most = max(1, *(i.n_in_flight for i in self.instances))

        def score(i: Instance) -> tuple[float, int]:
            held = i.view.n_held(ids) / max(1, len(ids))
            return PREFIX_WEIGHT * held + QUEUE_WEIGHT * (1 - i.n_in_flight / most), -i.n_requests
        return max(self.instances, key=score)


async def rendered(instance: Instance, path: str, body: bytes) -> list[int]:
    parts = [p async for p in instance.ask(request_bytes(path, body), body)]
    answer = json.loads(b"".join(parts[1:]))
    one = answer[0] if isinstance(answer, list) else answer
    return one["token_ids"]


POLICIES = {"round-robin": RoundRobin, "hash": ConsistentHash, "precise": Precise}


# --- the front end ---

class Router:
    def __init__(self, policy: str, instances: list[Instance]) -> None:
        self.instances = instances
        self.policy = POLICIES[policy](instances)
        self.statuses: dict[str, int] = {}
        self.choose_s: list[float] = []  # from the whole request to the choice of its instance
        self.began = time.monotonic()
        self.is_stopping = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while not self.is_stopping:
                head = await reader.readuntil(b"\r\n\r\n")
                n = int(field_of(head.lower(), b"content-length") or 0)
                await self.answer(head, await reader.readexactly(n), writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has left
        finally:
            writer.close()

    async def answer(self, head: bytes, body: bytes, writer: asyncio.StreamWriter) -> None:
        method, path, _ = head.split(b"\r\n", 1)[0].decode().split(" ", 2)
        if path == "/router":
            return send_json(writer, self.figures())
        is_counted = method == "POST" and path != "/tokenize"
        began = time.monotonic()
        instance = await self.policy.choose(path, body) if is_counted else self.instances[0]
        if is_counted:
            self.choose_s.append(time.monotonic() - began)
            instance.n_requests += 1
        instance.n_in_flight += 1
        try:
            is_first = True
            async for part in instance.ask(head, body):
                if is_first and is_counted:
                    status = part.split(b" ", 2)[1].decode()
                    self.statuses[status] = self.statuses.get(status, 0) + 1
                is_first = False
                writer.write(part)
                await writer.drain()
        finally:
            instance.n_in_flight -= 1

    def figures(self) -> dict:
        used = resource.getrusage(resource.RUSAGE_SELF)
        n = max(1, len(self.choose_s))
        return {"statuses": self.statuses, "requests": [i.n_requests for i in self.instances],
                "cpu_s": used.ru_utime + used.ru_stime, "cpu_s_per_request":
                (used.ru_utime + used.ru_stime) / n, "wall_s": time.monotonic() - self.began,
                "choose_mean_s": sum(self.choose_s) / n,
                "choose_max_s": max(self.choose_s, default=0.0),
                "blocks_known": [i.view.n_blocks() for i in self.instances],
                "events": [i.view.n_events for i in self.instances],
                "events_lost": [i.view.n_lost for i in self.instances]}


def send_json(writer: asyncio.StreamWriter, value: dict) -> None:
    text = json.dumps(value).encode()
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                 b"Content-Length: %d\r\n\r\n%s" % (len(text), text))


async def run(args: argparse.Namespace) -> None:
    instances = [Instance(url) for url in args.instances.split(",")]
    router = Router(args.policy, instances)
    followers = []
    if args.policy == "precise":
        addresses = args.events.split(",")
        if len(addresses) != len(instances):
            raise SystemExit("--events needs an address for each instance")
        followers = [asyncio.create_task(follow(a, i.view)) for a, i in zip(addresses, instances)]
    server = await asyncio.start_server(router.serve, "127.0.0.1", args.port, limit=LIMIT,
                                        backlog=1024)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    waits = [asyncio.create_task(ended.wait()), *followers]
    done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    router.is_stopping = True
    for task in done:
        task.result()  # a follower ends by an error only
    for task in waits:
        task.cancel()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--policy", choices=POLICIES, required=True)
    parser.add_argument("--instances", required=True, help="URLs, separated by commas")
    parser.add_argument("--events", default="", help="precise: tcp://HOST:PORT of each instance")
    parser.add_argument("--port", type=int, default=0)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
