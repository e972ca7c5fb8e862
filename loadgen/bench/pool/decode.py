"""decode.py - answers whose prefix lies on another instance: the prefix is read, or gets queries,
beside an instance that has the prefix itself.

Instances form a pool. One computes a prefix; then a question behind it is answered by this
instance from its own memory, by another one that reads the KV (--pool-query never), by one that
sends queries (--pool-query always), or by one that sends them to three instances, which all hold
the prefix. Every answer has a prefix of its own, and the order of the ways changes from round to
round. No copies are made to balance load (--no-pool-balance).
"""
from __future__ import annotations

import contextlib
import http.client
import json
import statistics
import time
import urllib.parse
from pathlib import Path

from cluster import common, pool_flags, ratio, wait_for_pool

SHAPE = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 8,
         "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64,
         "max_position_embeddings": 8192}
PREFIXES, QUICK_PREFIXES = (1024, 4096), (256,)
QUESTION, OUTPUT, ROUNDS = 24, 48, 5
# The value of --pool-query.
WAYS = {"local": "auto", "read": "never", "queries": "always", "three": "always"}
HOLDERS = ("holder-2", "holder-3")  # of the prefixes of "three", beside "local"
SEGMENT = 256
FIRST_ID, N_IDS = 300, 1000
# Only a fault may meet a deadline.
PATIENT = ["--pool-lookup-ms", 10000, "--pool-pull-ms", 20000, "--pool-query-ms", 5000,
           "--no-pool-balance"]


def ids(seed: int, n: int) -> list[int]:
    """Token ids that differ between seeds from the first one on."""
    return [FIRST_ID + (i * 7 + seed * 131 + i // N_IDS) % N_IDS for i in range(n)]


def ask(server: common.Server, prompt: list[int], n_out: int, **more: object) -> dict:
    """Seconds to the first token, and from token to token behind it; the text."""
    url = urllib.parse.urlsplit(server.url)
    connection = http.client.HTTPConnection(url.hostname, url.port, timeout=300)
    body = {"prompt": prompt, "max_tokens": n_out, "temperature": 0, "ignore_eos": True,
            "stream": True, "stream_options": {"include_usage": True}, **more}
    began = time.monotonic()
    connection.request("POST", "/v1/completions", json.dumps(body),
                       {"Content-Type": "application/json"})
    reply = connection.getresponse()
    if reply.status != 200:
        raise SystemExit(f"{reply.status}: {reply.read()[:300]!r}")
    times, text, cached = [], "", 0
    for line in reply:
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        if event["choices"]:
            times.append(time.monotonic())
            text += event["choices"][0]["text"]
        if event.get("usage"):
            cached = event["usage"]["prompt_tokens_details"]["cached_tokens"]
    connection.close()
    return {"ttft_s": times[0] - began, "tpot_s": (times[-1] - times[0]) / (n_out - 1),
            "text": text, "cached_tokens": cached}


def start(stack: contextlib.ExitStack, model: Path, folder: Path, way: str,
          flags: list[object]) -> common.Server:
    command = [common.program("tarn-server"), "--model", str(model), "--load-format", "dummy",
               "--port", "0", "--threads", "1", "--log-level", "warn", "--documents-path", "none",
               "--kv-device-bytes", "512M", "--cache-dir", str(folder / way), "--pool-query",
               WAYS.get(way, "auto"), *map(str, [*PATIENT, *flags])]
    return stack.enter_context(common.Server(command))


def hold(server: common.Server, prefix: list[int]) -> None:
    """Have the instance read the prefix, hold it, and tell the directory."""
    before = server.metrics()["tarn:pool_segments"]
    ask(server, prefix + ids(1, QUESTION), 2, cache_ttl=60)
    end = time.monotonic() + 60
    while server.metrics()["tarn:pool_segments"] < before + len(prefix) // SEGMENT:
        if time.monotonic() > end:
            raise SystemExit("a prefix that is held is not announced")
        time.sleep(0.05)


def measure_prefix(servers: dict[str, common.Server], n_prefix: int, rounds: int) -> dict:
    answers: dict[str, list[dict]] = {way: [] for way in WAYS}
    before = {way: s.metrics() for way, s in servers.items()}
    for i in range(rounds):
        order = list(WAYS)[i % len(WAYS):] + list(WAYS)[:i % len(WAYS)]
        for k, way in enumerate(order):
            seed = n_prefix + len(WAYS) * i + k + 1  # of a prefix that only the first instance has
            prefix, question = ids(seed, n_prefix), ids(seed + 7919, QUESTION)
            ask(servers["local"], prefix + ids(seed + 104729, QUESTION), 2)
            for holder in HOLDERS if way == "three" else ():
                hold(servers[holder], prefix)
            answers[way].append(ask(servers[way], prefix + question, OUTPUT))
            if answers[way][-1]["text"] != ask(servers["local"], prefix + question, OUTPUT)["text"]:
                raise SystemExit(f"the answer by {way} differs")
    lenders = ("local", *HOLDERS)
    out: dict = {"attended": {s: servers[s].metrics().get("tarn:pool_attended_total", 0)
                              - before[s].get("tarn:pool_attended_total", 0) for s in lenders}}
    for way, all_of in answers.items():
        moved = [servers[way].metrics().get(name, 0) - before[way].get(name, 0)
                 for name in ("tarn:pool_pulled_bytes_total", "tarn:pool_query_bytes_total")]
        out[way] = {"ttft_ms": 1e3 * statistics.median([a["ttft_s"] for a in all_of]),
                    "tpot_ms": 1e3 * statistics.median([a["tpot_s"] for a in all_of]),
                    "cached_tokens": min(a["cached_tokens"] for a in all_of),
                    "pulled_bytes": ratio(moved[0], rounds), "query_bytes": ratio(moved[1], rounds)}
    return out


def measure(model: Path, folder: Path, quick: bool) -> dict:
    out: dict = {"settings": {"shape": SHAPE, "question": QUESTION, "output": OUTPUT},
                 "prefixes": {}}
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        flags = stack.enter_context(pool_flags(folder, []))
        servers = {way: start(stack, model, folder, way, flags) for way in (*WAYS, *HOLDERS)}
        wait_for_pool(list(servers.values()), len(servers))
        for n in QUICK_PREFIXES if quick else PREFIXES:
            common.progress(f"decode: a prefix of {n} tokens")
            out["prefixes"][str(n)] = measure_prefix(servers, n, 1 if quick else ROUNDS)
    return out


def print_text(out: dict) -> None:
    print(f"\ndecode: {out['settings']['question']} tokens of question, "
          f"{out['settings']['output']} of answer; medians")
    print(f"{'prefix':>7} {'way':8} {'TTFT, ms':>9} {'ms/token':>9} {'cached':>7} "
          f"{'read, MB':>9} {'queries, MB':>12}")
    for n, ways in out["prefixes"].items():
        for way in WAYS:
            r = ways[way]
            print(f"{n:>7} {way:8} {r['ttft_ms']:9.1f} {r['tpot_ms']:9.2f} "
                  f"{r['cached_tokens']:7} {r['pulled_bytes'] / 1e6:9.2f} "
                  f"{r['query_bytes'] / 1e6:12.2f}")
        print(f"{n:>7} queries answered: " + ", ".join(
            f"{name} {count:.0f}" for name, count in ways["attended"].items()))
