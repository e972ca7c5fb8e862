#!/usr/bin/env python3
"""tarn-cachebench, small: every field is there, hits happen in the tier that the row names, no hit
happens where none is possible, writes are counted, and wrong options are refused by name. No time
is judged."""
from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
import tarn_test  # noqa: E402

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12, "intermediate_size": 100,
    "vocab_size": 300, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5,
    "rope_theta": 10000, "tie_word_embeddings": False, "torch_dtype": "bfloat16"}
PREFIX, NEW, ROUNDS, HITS = 650, 5, 2, 2 # the prefix ends inside of a block
BLOCK = 32
SMALL = ["--prefix", PREFIX, "--new", NEW, "--rounds", ROUNDS, "--hits", HITS, "--threads", 2,
         "--segments", 420, "--path-segments", 10, "--lookups", 40,
         "--requests", 10, "--prompt", 70, "--max-tokens", 3,
         "--disk-pairs", 4, "--restarts", 2,
         "--write-rounds", 2, "--write-requests", 2, "--write-prompt", 96, "--write-tokens", 2,
         "--records", 300, "--opens", 4]
# The same once: for the words of a table, whose figures were checked in the JSON.
ONCE = [*SMALL, "--rounds", 1, "--hits", 1, "--disk-pairs", 1, "--restarts", 1,
        "--write-rounds", 1, "--opens", 1]
SHOW = Path(__file__).resolve().parents[2] / "loadgen" / "bench" / "cache" / "show.py"
PARTS = ("ttft", "tree", "miss", "disk", "writes", "index")
TOKEN_BYTES = 2 * 2 * 2 * 12 * 2  # K and V of 2 layers, 2 heads of 12, 2 bytes each
EXTENT = 8192  # 32 tokens of that, in whole pages
HEADER = 256


def run(*options: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    command = [str(tarn_test.program("tarn-cachebench")), *map(str, options)]
    done = subprocess.run(command, capture_output=True, text=True,
                          timeout=tarn_test.patience(300), check=False)
    assert done.returncode == code, (command, done.returncode, done.stdout, done.stderr)
    return done


def check_figure(figure: dict, n: int) -> None:
    assert figure["n"] == n, figure
    for name in ("median", "min", "max", "p90"):
        assert math.isfinite(figure[name]) and figure[name] >= 0, figure
    assert figure["min"] <= figure["median"] <= figure["p90"] <= figure["max"], figure


def check_ttft(r: dict) -> None:
    pairs = ROUNDS * HITS
    assert r["prefix_tokens"] == PREFIX and r["new_tokens"] == NEW and r["threads"] == 2
    assert r["kv_bytes"] == PREFIX * TOKEN_BYTES
    assert 0 < r["weight_bytes"] < 1e6
    check_figure(r["floor_s"], pairs)
    check_figure(r["read_bytes_per_s"], pairs + ROUNDS)
    for kind, n in (("cold", ROUNDS), ("device", pairs), ("host", pairs)):
        row = r[kind]
        assert row["n_elsewhere"] == 0, (kind, row)
        check_figure(row["ttft_s"], n)
        check_figure(row["of_floor"], n)
        assert row["of_floor"]["min"] > 0
    assert r["cold"]["cached_device_max"] == r["cold"]["cached_host_max"] == 0
    assert r["device"]["cached_device_min"] == PREFIX and r["device"]["cached_host_max"] == 0
    assert r["host"]["cached_host_min"] >= PREFIX - 2 * BLOCK
    assert r["host"]["cached_host_max"] <= PREFIX
    # Every host hit came back, block by block.
    assert r["n_moved_to_device"] >= pairs * (PREFIX // BLOCK - 2)
    assert r["n_moved_to_host"] >= r["n_moved_to_device"]


def check_tree(r: dict) -> None:
    assert (r["n_segments"], r["n_paths"], r["path_segments"]) == (420, 42, 10)
    assert r["n_nodes"] >= 420, "a node is at most a segment long"
    assert r["memory_bytes"] > 0
    assert math.isclose(r["bytes_per_segment"], r["memory_bytes"] / 420, rel_tol=1e-3)
    assert 0 < r["hash_one_s"] and 0 < r["fill_s_per_segment"]
    check_figure(r["hash_s_per_segment"], 42)
    assert math.isclose(r["walk_and_pin_s_target"], 5e-6)
    for kind in ("cold", "warm"):
        for call in ("walk_and_pin_s", "match_s", "attach_s", "open_s", "close_s"):
            check_figure(r[kind][call], 40)


def check_miss(r: dict) -> None:
    assert (r["n_requests"], r["prompt_tokens"], r["generated_tokens"]) == (10, 70, 3)
    assert r["macs_per_token"] > 1e6
    assert r["n_evicted"] > 0, "the pool was meant to be full"
    check_figure(r["cpu_s_on"], 10)
    check_figure(r["cpu_s_off"], 10)
    assert r["cpu_s_on"]["min"] > 0


def check_disk(r: dict) -> None:
    assert r["prefix_tokens"] == PREFIX and r["kv_bytes"] == PREFIX * TOKEN_BYTES
    assert r["io"] in ("io_uring", "threads") and isinstance(r["is_direct"], bool)
    assert r["n_reads_failed"] == r["n_corrupt"] == 0, r
    n_blocks = -(-PREFIX // BLOCK)
    assert math.isclose(r["bytes_per_token"], n_blocks * (EXTENT + HEADER) / PREFIX, rel_tol=1e-4)
    assert math.isclose(r["payload_bytes_per_token"], TOKEN_BYTES)
    assert math.isclose(r["bytes_of_payload"], r["bytes_per_token"] / TOKEN_BYTES, rel_tol=1e-4)
    assert 0 < r["file_bytes"] <= r["file_bytes_max"], r
    assert 0 <= r["steal_share"] <= 1
    check_figure(r["disk_bytes_per_s"], 1 + 4 + 2)
    check_figure(r["read_s"], 4 + 2)
    check_figure(r["floor_s"], 4 + 2)
    for kind, n in (("cold", 2), ("step", 4 + 2), ("disk", 4), ("restart", 2)):
        row = r[kind]
        assert row["n_elsewhere"] == 0, (kind, row)
        check_figure(row["ttft_s"], n)
    for kind in ("disk", "restart"):
        check_figure(r[kind]["of_floor"], r[kind]["ttft_s"]["n"])
        assert r[kind]["of_floor"]["min"] > 0
    assert r["cold"]["cached_disk_min"] == r["step"]["cached_disk_min"] == 0
    assert r["disk"]["cached_disk_min"] >= PREFIX - 2 * BLOCK
    assert r["restart"]["cached_disk_min"] == PREFIX


def check_writes(r: dict) -> None:
    assert (r["n_rounds"], r["n_requests"], r["prompt_tokens"], r["generated_tokens"]) == \
        (2, 2, 96, 2)
    assert r["batch_tokens"] == 2 * 2 * (96 + 4 + 2)
    for side in ("no_disk", "no_disk_again", "min_uses_1", "min_uses_2"):
        check_figure(r[side]["tokens_per_s"], 2)
    assert "cost_percent" not in r["no_disk"]
    for side in ("no_disk", "no_disk_again"):
        assert r[side]["written_bytes"] == 0
    for side in ("min_uses_1", "min_uses_2"):
        # The prompts; with the first use also what stands behind them, where that fills a block.
        least = 2 * 2 * 96 * TOKEN_BYTES
        assert least <= r[side]["written_bytes"] <= 2 * least, (side, r[side])
        assert 0 <= r[side]["written_meanwhile_share"] <= 1
        assert r[side]["cost_percent"]["n"] == 2


def check_index(r: dict) -> None:
    assert r["n_records"] == 320, "whole paths of 64 records"
    assert r["n_extents"] >= r["n_records"]
    check_figure(r["cold_s"], 2)
    check_figure(r["warm_s"], 2)
    check_figure(r["open_s"], 4)
    assert 0 < r["cold_s"]["min"] and 0 < r["write_s"]
    assert math.isclose(r["cold_s_target"], 320 / 100000)


def check_disk_parts(model: str, folder: str) -> None:
    """Where it was told to, without io_uring; nothing stays there."""
    for part in ("disk", "writes", "index"):
        one = json.loads(run("--part", part, "--model", model, *ONCE, "--disk-path", folder,
                             "--disk-io", "threads", "--json", "--quiet").stdout)
        assert one.keys() == {"format", part}, one.keys()
        assert one[part].get("io", "threads") == "threads", one
        assert not list(Path(folder).iterdir()), part
    text = run("--part", "disk", "--model", model, *ONCE, "--quiet").stdout
    for kind in ("cold", "step", "disk", "restart"):
        assert f"\n{kind} " in text, text
    text = run("--part", "writes", "--model", model, *ONCE, "--quiet").stdout
    assert "\nmin_uses_2 " in text, text
    assert "of 320 records" in run("--part", "index", *ONCE, "--quiet").stdout
    done = run("--part", "index", *ONCE, "--disk-path", f"{folder}/not-there", code=1)
    assert "not-there" in done.stderr and "--disk-path" in done.stderr, done.stderr


def check_parts(model: str) -> None:
    whole = json.loads(run("--model", model, *SMALL, "--json", "--quiet").stdout)
    assert whole.keys() == {"format", *PARTS} and whole["format"] == 1
    check_ttft(whole["ttft"])
    check_tree(whole["tree"])
    check_miss(whole["miss"])
    check_disk(whole["disk"])
    check_writes(whole["writes"])
    check_index(whole["index"])
    one = json.loads(run("--part=miss", *ONCE, "--prefix-caching", "off", "--json").stdout)
    assert one.keys() == {"format", "miss"}
    assert one["miss"]["cpu_s_on"] is None and one["miss"]["n_evicted"] == 0
    text = run("--part", "tree", *ONCE, "--cache-policy", "lru").stdout
    assert "420 segments" in text and "policy lru" in text, text
    text = run("--part", "ttft", "--model", model, *ONCE).stdout
    for kind in ("cold", "device", "host"):
        assert f"\n{kind} " in text, text


def check_refusals(model: str) -> None:
    usage = run("--help").stdout
    for name in ("--part", "--prefix", "--segments", "--requests", "--json"):
        assert name in usage, name
    assert "tarn-cachebench" in run("--version").stdout
    for options, words in (
            (["--frobnicate"], "--frobnicate"), (["--segment", "9"], "--segments"),
            (["--part", "nope"], "--part"), (["--part"], "--part"), (["--rounds", "0"], "--rounds"),
            (["--prefix=-1"], "--prefix"), (["--prefix", "4000x"], "--prefix"),
            (["--hits", "99999999999999999999"], "--hits"), (["--json=1"], "--json"),
            (["stray"], "stray"), (["--segments", "9", "--path-segments", "10"], "--path-segments"),
            (["--prefix-caching", "maybe"], "--prefix-caching"), (["--disk-io", "x"], "--disk-io")):
        assert words in run(*options, code=2).stderr, (options, words)
    done = subprocess.run([str(tarn_test.program("tarn-cachebench")), "--part", "ttft", "--model",
                           f"{model}/nothing-here"], capture_output=True, text=True, check=False)
    assert done.returncode != 0 and "nothing-here" in done.stderr, done
    done = subprocess.run([str(tarn_test.program("tarn-cachebench")), "--part", "tree", "--quiet",
                           "--segments", "400", "--cache-policy", "nope"], capture_output=True,
                          text=True, check=False)
    assert done.returncode != 0 and "nope" in done.stderr, done


def check_missing_data() -> None:
    """Traces do not come with the repository: one line says that they are missing."""
    for command, words in (
            ([str(SHOW), "--data", "/nowhere"], "show.py: --data /nowhere: holds none of"),
            ([str(SHOW.parents[1] / "policy" / "draw_trace.py"), "/nowhere", "/nowhere/out"],
             "draw_trace.py: /nowhere: holds no documents.jsonl")):
        done = subprocess.run([sys.executable, *command], capture_output=True, text=True,
                              check=False)
        assert done.returncode == 2 and done.stderr.startswith(words), (command, done)
        assert done.stderr.count("\n") == 1 and not done.stdout, (command, done)


def available_gib() -> float:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) / (1 << 20)
    return math.inf


def check_memory() -> None:
    """A run that does not fit into memory is refused before any allocation."""
    if available_gib() > 150:
        return
    done = run("--part", "tree", "--quiet", "--segments", "90000000", code=1)
    assert "--segments" in done.stderr and "GiB" in done.stderr, done.stderr


def main() -> int:
    with tempfile.TemporaryDirectory() as model:
        Path(model, "config.json").write_text(json.dumps(CONFIG))
        check_refusals(model)
        check_missing_data()
        check_memory()
        check_parts(model)
        with tempfile.TemporaryDirectory() as folder:
            check_disk_parts(model, folder)
    print("ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
