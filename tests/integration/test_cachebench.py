#!/usr/bin/env python3
"""tarn-cachebench, small: every field is there, hits happen in the tier that the row names, nothing
is found where nothing can be, and wrong options are refused by name. No time is judged."""
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
         "--requests", 10, "--prompt", 70, "--max-tokens", 3]


def run(*options: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    command = [str(tarn_test.program("tarn-cachebench")), *map(str, options)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
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
    # K and V of 2 layers, 2 heads of 12, 2 bytes each.
    assert r["kv_bytes"] == PREFIX * 2 * 2 * 2 * 12 * 2
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


def check_parts(model: str) -> None:
    whole = json.loads(run("--model", model, *SMALL, "--json", "--quiet").stdout)
    assert whole.keys() == {"format", "ttft", "tree", "miss"} and whole["format"] == 1
    check_ttft(whole["ttft"])
    check_tree(whole["tree"])
    check_miss(whole["miss"])
    one = json.loads(run("--part=miss", *SMALL, "--prefix-caching", "off", "--json").stdout)
    assert one.keys() == {"format", "miss"}
    assert one["miss"]["cpu_s_on"] is None and one["miss"]["n_evicted"] == 0
    text = run("--part", "tree", *SMALL, "--cache-policy", "lru").stdout
    assert "420 segments" in text and "policy lru" in text, text
    text = run("--part", "ttft", "--model", model, *SMALL).stdout
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
            (["--prefix-caching", "maybe"], "--prefix-caching")):
        assert words in run(*options, code=2).stderr, (options, words)
    done = subprocess.run([str(tarn_test.program("tarn-cachebench")), "--part", "ttft", "--model",
                           f"{model}/nothing-here"], capture_output=True, text=True, check=False)
    assert done.returncode != 0 and "nothing-here" in done.stderr, done
    done = subprocess.run([str(tarn_test.program("tarn-cachebench")), "--part", "tree", "--quiet",
                           "--segments", "400", "--cache-policy", "nope"], capture_output=True,
                          text=True, check=False)
    assert done.returncode != 0 and "nope" in done.stderr, done


def available_gib() -> float:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) / (1 << 20)
    return math.inf


def check_memory() -> None:
    """What does not fit is refused before it is taken."""
    if available_gib() > 150:
        return
    done = run("--part", "tree", "--quiet", "--segments", "90000000", code=1)
    assert "--segments" in done.stderr and "GiB" in done.stderr, done.stderr


def main() -> int:
    with tempfile.TemporaryDirectory() as model:
        Path(model, "config.json").write_text(json.dumps(CONFIG))
        check_refusals(model)
        check_memory()
        check_parts(model)
    print("ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
