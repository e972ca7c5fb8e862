#!/usr/bin/env python3
"""The disk tier from a user's view: KV that survives a kill, and directories with damaged files.

Answers are compared with those of a server without a cache: the text is right, whatever a directory
holds. TARN_TEST_MODEL is not used, because the tests count blocks of a known model.
"""
from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable

from http_helpers import Server, make_model, run_tests, tarn_server
import tarn_test

TEXT = "/v1/completions"
CHAT = "/v1/chat/completions"
BLOCK = 32
N_PROMPT = 10 * BLOCK
N_FOUND = N_PROMPT - BLOCK  # the last token is always computed, and so its block
PAGE, HEADER = 4096, 256  # cache/disk/DISK_FORMAT.md
DISK_BYTES = 8 << 20
SEEDS = (1, 2, 3)
SYSTEM = "You answer questions about trains. " * 12
WAIT_S = tarn_test.patience(120)

MODEL: Path
OTHER: Path  # of the same shape, with other weights
FOLDER: Path
PLAIN: dict[tuple[str, int], list[int]] = {}  # the answers of a server without a cache


# --- servers ---

def fresh(name: str) -> Path:
    path = FOLDER / name
    shutil.rmtree(path, ignore_errors=True)
    return path


def options_of(disk: Path, *more: str) -> list[str]:
    """The disk timeout is long, so that no read is given up on a slow machine. The installation
    secret is part of all keys, so it must outlive the servers as well."""
    return ["--kv-disk-path", str(disk), "--kv-disk-bytes", str(DISK_BYTES),
            "--kv-disk-timeout-ms", "100000", "--kv-preload", "none",
            "--cache-dir", str(FOLDER / "secret"), *more]


def serve(disk: Path, *more: str, model: Path | None = None) -> Server:
    return tarn_server(model or MODEL, *options_of(disk, *more))


def kill(s: Server) -> None:
    assert s.stop(signal.SIGKILL) == -signal.SIGKILL
    assert s.process.stdout
    s.process.stdout.close()


def refused(disk: Path, *more: str, model: Path | None = None) -> str:
    """Words of a server that does not start, and ends with 1."""
    done = subprocess.run([str(tarn_test.program("tarn-server")), "--model", str(model or MODEL),
                           "--port", "0", *options_of(disk, *more)],
                          capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 1 and "http://" not in done.stdout, done
    return done.stderr.splitlines()[-1]


# --- requests ---

def prompt_of(seed: int) -> list[int]:
    """No two seeds share a block."""
    return [7 + (i * (seed + 3) + seed) % 90 for i in range(N_PROMPT)]


def ask(s: Server, seed: int) -> dict[str, int]:
    """Where its prompt was found; the answer must be the right one."""
    answer = s.post(TEXT, {"prompt": prompt_of(seed), "max_tokens": 8, "temperature": 0,
                           "ignore_eos": True, "return_token_ids": True})
    ids = answer["choices"][0]["token_ids"]
    right = PLAIN.setdefault((answer["model"], seed), ids)
    assert ids == right, (seed, ids, right)
    details = answer["usage"]["prompt_tokens_details"]
    assert details["cached_tokens"] == sum(details["cached_tokens_details"].values()), answer
    return details["cached_tokens_details"]


def look(s: Server) -> dict[str, Any]:
    status, _, body = s.request("GET", "/cache?spans=50")
    assert status == 200, body
    for tier in body["tiers"]:
        blocks = tier["blocks"]
        assert blocks["leaked"] == 0, body
        assert blocks["total"] == sum(blocks[k] for k in ("free", "cached", "in_use",
                                                          "in_transfer")), body
    return body


def disk_tier(body: dict[str, Any]) -> dict[str, Any]:
    assert body["tiers"][-1]["name"] == "disk", body
    return body["tiers"][-1]


def n_on_disk(body: dict[str, Any]) -> int:
    blocks = disk_tier(body)["blocks"]
    return blocks["total"] - blocks["free"] - blocks["in_transfer"]


def at_rest(body: dict[str, Any]) -> bool:
    return all(t["blocks"]["in_use"] == 0 == t["blocks"]["in_transfer"] for t in body["tiers"])


def wait_for(s: Server, want: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    deadline = time.monotonic() + WAIT_S
    while True:
        body = look(s)
        if want(body):
            return body
        assert time.monotonic() < deadline, body
        time.sleep(0.02)


def metrics_of(s: Server, name: str, value: float) -> dict[str, float]:
    """The metrics once this one has its value: they are published a moment after GET /cache."""
    deadline = time.monotonic() + WAIT_S
    while (m := s.metrics())[name] != value:
        assert time.monotonic() < deadline, (name, value, m[name])
        time.sleep(0.02)
    return m


def fill(s: Server, seeds: tuple[int, ...] = SEEDS) -> dict[str, Any]:
    """Each prompt twice, until all that both uses found is on disk."""
    for seed in seeds:
        for _ in range(2):
            ask(s, seed)
    n = len(seeds) * (N_FOUND // BLOCK)
    return wait_for(s, lambda b: at_rest(b) and n_on_disk(b) >= n)


def filled(disk: Path, seeds: tuple[int, ...] = SEEDS, model: Path | None = None) -> Path:
    """The folder with the files of a server that was killed when all was written."""
    s = serve(disk, model=model)
    body = fill(s, seeds)
    kill(s)
    return disk / f"{body['fingerprint']}-v1"


# --- files ---

def full_extents(folder: Path) -> list[int]:
    """Numbers of the extents that have a header."""
    table = (folder / "table").read_bytes()[PAGE:]
    return [e for e in range(len(table) // HEADER) if any(table[e * HEADER:(e + 1) * HEADER])]


def patch(path: Path, offset: int, change: Callable[[bytes], bytes], n: int) -> None:
    with path.open("r+b") as f:
        f.seek(offset)
        old = f.read(n)
        f.seek(offset)
        f.write(change(old))


def flip(old: bytes) -> bytes:
    at = random.Random(len(old)).randrange(len(old))
    return old[:at] + bytes([old[at] ^ 16]) + old[at + 1:]


def noise(old: bytes) -> bytes:
    return random.Random(7).randbytes(len(old))


def size_of(path: Path) -> int:
    return sum(p.stat().st_size for p in path.rglob("*") if p.is_file())


def all_right(disk: Path, model: Path | None = None) -> tuple[dict[str, Any], int]:
    """Each prompt twice, on a server with this directory: GET /cache and tokens from disk."""
    with serve(disk, model=model) as s:
        n = sum(ask(s, seed)["disk"] for seed in SEEDS)
        for seed in SEEDS:
            assert ask(s, seed)["device"] == N_FOUND
        return wait_for(s, at_rest), n


# --- what survives ---

def blocks_used_twice_survive_a_kill() -> None:
    disk = fresh("survive")
    s = serve(disk)
    assert "Disk KV cache size: " in s.first_lines and ": 0 blocks found in " in s.first_lines
    assert ask(s, 1) == {"device": 0, "host": 0, "disk": 0}
    body = wait_for(s, at_rest)
    assert n_on_disk(body) == 0 == body["disk"]["written_bytes"], body  # once is not enough
    assert ask(s, 1) == {"device": N_FOUND, "host": 0, "disk": 0}
    body = wait_for(s, lambda b: at_rest(b) and n_on_disk(b) >= N_FOUND // BLOCK)
    n, block = n_on_disk(body), body["block_bytes"]
    assert body["disk"]["written_bytes"] == n * block, body
    assert body["disk"]["extent_bytes"] % PAGE == 0 <= body["disk"]["extent_bytes"] - block
    m = metrics_of(s, 'tarn:kv_disk_blocks{state="cached"}', n)
    assert m["tarn:kv_disk_written_bytes_total"] == n * block, m
    assert m['tarn:kv_blocks_moved_total{to="disk"}'] == n, m
    assert m["tarn:kv_disk_hung"] == 0 == m["tarn:kv_disk_writes_failed_total"], m
    kill(s)
    folder = disk / f"{body['fingerprint']}-v1"
    assert len(full_extents(folder)) == n
    with serve(disk) as s:
        assert f": {n} blocks found in " in s.first_lines, s.first_lines
        assert "not used" not in s.first_lines, s.first_lines
        body = look(s)
        assert body["disk"]["found_blocks"] == n == n_on_disk(body), body
        assert set(body["disk"]["dropped_records"].values()) == {0}, body
        assert ask(s, 1) == {"device": 0, "host": 0, "disk": N_FOUND}
        m = metrics_of(s, 'tarn:prompt_tokens_by_tier_total{tier="disk"}', N_FOUND)
        assert m["tarn:kv_disk_read_bytes_total"] >= N_FOUND // BLOCK * block, m
        assert m["tarn:kv_disk_index_seconds"] > 0 == m["tarn:kv_disk_preloaded_blocks_total"], m
        assert disk_tier(look(s))["hit_tokens"] == N_FOUND
        assert ask(s, 1) == {"device": N_FOUND, "host": 0, "disk": 0}
        assert "n_hit_disk=288" in s.log_text()


def blocks_used_twice_survive_an_orderly_end() -> None:
    disk = fresh("orderly")
    with serve(disk) as s:
        fill(s)
    with serve(disk, "--kv-host-bytes", str(1 << 20)) as s:
        for seed in SEEDS:
            assert ask(s, seed) == {"device": 0, "host": 0, "disk": N_FOUND}


def with_one_use_everything_is_written() -> None:
    disk = fresh("once")
    s = serve(disk, "--kv-disk-min-uses", "1")
    ask(s, 1)
    wait_for(s, lambda b: at_rest(b) and n_on_disk(b) >= N_FOUND // BLOCK)
    kill(s)
    with serve(disk) as s:
        assert ask(s, 1)["disk"] == N_FOUND


def chat(s: Server, question: str) -> tuple[str, dict[str, int]]:
    answer = s.post(CHAT, {"messages": [{"role": "system", "content": SYSTEM},
                                        {"role": "user", "content": question}],
                           "temperature": 0, "max_tokens": 8})
    details = answer["usage"]["prompt_tokens_details"]["cached_tokens_details"]
    return answer["choices"][0]["message"]["content"], details


def a_preamble_is_there_before_the_first_request() -> None:
    """The KV of a preamble is written on its first use, and read when the next server starts."""
    disk = fresh("preamble")
    (FOLDER / "preamble.txt").write_text(SYSTEM)
    preamble = ["--preamble", str(FOLDER / "preamble.txt")]
    s = serve(disk, *preamble)
    text, found = chat(s, "When?")
    assert sum(found.values()) == 0, found
    n = n_on_disk(wait_for(s, lambda b: at_rest(b) and n_on_disk(b) > 0))
    kill(s)
    for preload in ("registered", "all"):
        with serve(disk, *preamble, "--kv-preload", preload) as s:
            wait_for(s, lambda b: b["disk"]["preloaded_blocks"] >= n)
            again, found = chat(s, "When?")
            assert again == text, (again, text)
            assert found["disk"] == 0 and found["device"] > (n - 1) * BLOCK, (found, n)
            metrics_of(s, "tarn:kv_disk_preloaded_blocks_total",
                       look(s)["disk"]["preloaded_blocks"])
    with serve(disk, *preamble, "--kv-preload", "none") as s:
        again, found = chat(s, "When?")
        assert again == text and found["device"] == 0 and found["disk"] > (n - 1) * BLOCK, found
        assert look(s)["disk"]["preloaded_blocks"] == 0


def preloading_reads_what_was_used_if_all_is_wanted() -> None:
    disk = fresh("all")
    filled(disk)
    with serve(disk, "--kv-preload", "all") as s:
        wait_for(s, lambda b: at_rest(b) and
                 b["disk"]["preloaded_blocks"] >= len(SEEDS) * N_FOUND // BLOCK)
        for seed in SEEDS:
            assert ask(s, seed) == {"device": N_FOUND, "host": 0, "disk": 0}


# --- who may use it ---

def a_second_server_on_the_directory_is_told_so() -> None:
    disk = fresh("two")
    with serve(disk) as s:
        fill(s, (1,))
        words = refused(disk)
        assert str(disk) in words and "server" in words, words
        assert ask(s, 1)["device"] == N_FOUND


def an_unusable_path_or_size_is_named() -> None:
    disk = fresh("small")
    words = refused(disk, "--kv-disk-bytes", "4096")
    assert "--kv-disk-bytes" in words, words
    a_file = FOLDER / "a_file"
    a_file.write_text("not a directory")
    assert str(a_file) in refused(a_file), "a file is no directory"
    assert a_file.read_text() == "not a directory"


def another_model_makes_room_within_the_bound() -> None:
    disk = fresh("models")
    (disk / "mine").mkdir(parents=True)
    (disk / "mine" / "notes").write_text("not Tarn's")
    first = filled(disk)
    assert size_of(first) <= DISK_BYTES and size_of(first) > DISK_BYTES // 2, size_of(first)
    second = filled(disk, model=OTHER)
    assert first != second and not first.exists() and second.exists(), list(disk.iterdir())
    assert size_of(second) <= DISK_BYTES
    with serve(disk, model=OTHER) as s:
        assert ask(s, 1)["disk"] == N_FOUND
        # The files of a running server stay, so there is no room for another model.
        words = refused(disk)
        assert "--kv-disk-bytes" in words, words
        assert ask(s, 2)["disk"] == N_FOUND
    assert (disk / "mine" / "notes").read_text() == "not Tarn's"


# --- damage ---

def a_table_that_is_none_is_a_fresh_start() -> None:
    disk = fresh("table")
    folder = filled(disk)
    patch(folder / "table", 0, noise, PAGE)
    body, n = all_right(disk)
    assert n == 0 == body["disk"]["found_blocks"], body
    with serve(disk) as s:  # the KV of all_right() was written
        assert ask(s, 1)["disk"] == N_FOUND


def damaged_headers_are_counted_and_not_used() -> None:
    disk = fresh("headers")
    folder = filled(disk)
    extents = full_extents(folder)
    for e in extents:
        patch(folder / "table", PAGE + e * HEADER, flip, HEADER)
    s = serve(disk)
    assert f"cannot be used: {len(extents)} torn" in s.first_lines, s.first_lines
    m = s.metrics()
    assert m['tarn:kv_disk_records_dropped{why="torn"}'] == len(extents), m
    assert m["tarn:kv_disk_records_found"] == 0, m
    kill(s)
    body, n = all_right(disk)
    assert n == 0, body


def without_its_first_block_a_path_is_not_reached() -> None:
    disk = fresh("orphans")
    folder = filled(disk, seeds=(1,))
    n = len(full_extents(folder))
    zero = b"\0" * 32
    table = (folder / "table").read_bytes()
    first = [e for e in full_extents(folder)
             if table[PAGE + e * HEADER + 80:PAGE + e * HEADER + 112] == zero]
    assert len(first) == 1, first
    patch(folder / "table", PAGE + first[0] * HEADER, noise, HEADER)
    with serve(disk) as s:
        dropped = look(s)["disk"]["dropped_records"]
        assert dropped["torn"] == 1 and dropped["orphaned"] == n - 1, (dropped, n)
        assert ask(s, 1)["disk"] == 0


def flipped_bits_in_the_data_are_a_miss() -> None:
    disk = fresh("data")
    folder = filled(disk)
    with serve(disk) as s:
        block, extent = look(s)["block_bytes"], look(s)["disk"]["extent_bytes"]
    for e in full_extents(folder):
        patch(folder / "data", e * extent, flip, block)
    with serve(disk) as s:
        for seed in SEEDS:
            assert ask(s, seed) == {"device": 0, "host": 0, "disk": 0}
        corrupt = look(s)["disk"]["corrupt_blocks"]
        assert corrupt >= len(SEEDS), corrupt
        m = metrics_of(s, "tarn:kv_disk_corrupt_total", corrupt)
        assert m['tarn:prompt_tokens_by_tier_total{tier="disk"}'] == 0, m


def files_cut_short_are_a_miss() -> None:
    for name, keep in (("data", 0), ("data", 3 * PAGE + 100), ("table", 0), ("table", 100),
                       ("table", PAGE + 3 * HEADER + 10)):
        disk = fresh("short")
        path = filled(disk) / name
        with path.open("r+b") as f:
            f.truncate(keep)
        all_right(disk)


def files_of_another_model_are_not_used() -> None:
    for name in ("table", "data"):
        one, two = fresh("one"), fresh("two")
        a, b = filled(one), filled(two, model=OTHER)
        spare = FOLDER / "spare"
        (a / name).rename(spare)
        (b / name).rename(a / name)
        spare.rename(b / name)
        for disk, model in ((one, MODEL), (two, OTHER)):
            body, n = all_right(disk, model)
            assert n == 0, (name, n, body)
            found = body["disk"]["found_blocks"]
            if name == "data":  # the headers are right, and each payload is another one's
                assert found > 0 < body["disk"]["corrupt_blocks"], body
            else:
                assert found == 0, body


def tarnctl_verifies_a_directory() -> None:
    def verify(folder: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run([str(tarn_test.program("tarnctl")), "cache", "verify", str(folder)],
                              capture_output=True, text=True, timeout=WAIT_S, check=False)

    disk = fresh("verify")
    folder = filled(disk)
    done = verify(folder)
    assert done.returncode == 0, done
    patch(folder / "data", 0, flip, PAGE)
    e = full_extents(folder)[0]
    with serve(disk) as s:
        extent = look(s)["disk"]["extent_bytes"]
    patch(folder / "data", e * extent, noise, PAGE)
    done = verify(folder)
    assert done.returncode == 1, done


# --- forgetting ---

def deleting_overwrites_what_lies_on_disk() -> None:
    disk = fresh("delete")
    s = serve(disk)
    body = fill(s)
    data = disk / f"{body['fingerprint']}-v1" / "data"
    assert any(data.read_bytes())
    status, _, answer = s.request("DELETE", "/cache")
    assert status == 200 and answer["cached_blocks"]["disk"] == n_on_disk(body), answer
    wait_for(s, lambda b: disk_tier(b)["blocks"]["free"] == disk_tier(b)["blocks"]["total"])
    kill(s)
    assert not any(data.read_bytes()) and not full_extents(data.parent)
    with serve(disk) as s:
        assert ": 0 blocks found" in s.first_lines and "not used" not in s.first_lines
        assert sum(ask(s, 1).values()) == 0


def a_span_is_erased_from_every_tier() -> None:
    disk = fresh("erase")
    s = serve(disk)
    fill(s, (1,))
    key = look(s)["top_spans"][0]["key"]
    body = fill(s, (1, 2))
    n = n_on_disk(body)
    spans = {p["key"]: p for p in body["top_spans"]}
    assert spans[key]["blocks_by_tier"]["disk"] >= N_FOUND // BLOCK, spans
    status, _, answer = s.request("DELETE", f"/cache?span={key}")
    assert status == 200 and answer["blocks"] == spans[key]["blocks"], (answer, spans)
    body = wait_for(s, lambda b: at_rest(b) and
                    n_on_disk(b) == n - spans[key]["blocks_by_tier"]["disk"])
    assert key not in {p["key"] for p in body["top_spans"]}, body
    assert s.request("DELETE", f"/cache?span={key}")[0] == 404
    folder = disk / f"{body['fingerprint']}-v1"
    extent, left = body["disk"]["extent_bytes"], n_on_disk(body)
    kill(s)
    data = (folder / "data").read_bytes()
    used = {i for i in range(len(data) // extent) if any(data[i * extent:(i + 1) * extent])}
    assert used == set(full_extents(folder)) and len(used) == left, (used, left)
    with serve(disk) as s:  # before anything else was computed there
        assert look(s)["disk"]["found_blocks"] == left
        assert sum(ask(s, 1).values()) == 0
        assert ask(s, 2)["disk"] == N_FOUND


def main() -> int:
    global MODEL, OTHER, FOLDER
    tarn_test.need_numpy()
    with tempfile.TemporaryDirectory() as folder:
        FOLDER = Path(folder)
        MODEL = make_model(folder + "/1", "--seed", "1")
        OTHER = make_model(folder + "/2", "--seed", "2")
        for model in (MODEL, OTHER):
            with tarn_server(model, "--no-prefix-caching") as s:
                for seed in SEEDS:
                    ask(s, seed)
        return run_tests([
            blocks_used_twice_survive_a_kill,
            blocks_used_twice_survive_an_orderly_end,
            with_one_use_everything_is_written,
            a_preamble_is_there_before_the_first_request,
            preloading_reads_what_was_used_if_all_is_wanted,
            a_second_server_on_the_directory_is_told_so,
            an_unusable_path_or_size_is_named,
            another_model_makes_room_within_the_bound,
            a_table_that_is_none_is_a_fresh_start,
            damaged_headers_are_counted_and_not_used,
            without_its_first_block_a_path_is_not_reached,
            flipped_bits_in_the_data_are_a_miss,
            files_cut_short_are_a_miss,
            files_of_another_model_are_not_used,
            tarnctl_verifies_a_directory,
            deleting_overwrites_what_lies_on_disk,
            a_span_is_erased_from_every_tier,
        ])


if __name__ == "__main__":
    sys.exit(main())
