"""live_scenario.py - the part `live`: the scenario on running servers, one after another.

The model has random weights (SHAPE) and, where the shared data has it, the tokenizer of GPT-2, so
that a prompt has about as many tokens as with a real model and the time to its first token is the
time of its prefill. Each run starts a server, so every run begins with an empty cache. Each piece
goes into the results as soon as it is measured, and a later run of the same scenario goes on behind
the last one.
"""
from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from pathlib import Path
from typing import Callable, Iterator

from scenario import BLOCK, REPO, Scenario, common, path_tokens, program, shared_data
from simulated import ROOM_TOKENS, SLO_FACTOR, figures

DEMO = REPO / "deploy" / "demo-model"
# A prompt of 1,672 tokens takes about 30 ms on two cores with AVX-512, and 1.2 ms if it is cached.
# 13 % of that is attention. A model of 7 billion parameters has 3 %; the larger the share, the less
# a cached first document saves, because the second one's tokens still read it.
SHAPE = {"hidden_size": 256, "intermediate_size": 3072, "num_hidden_layers": 2,
         "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64,
         "max_position_embeddings": 16384, "torch_dtype": "bfloat16"}
KV_BYTES = 2  # of a number: --kv-cache-dtype bf16, and f16 of llama.cpp
KV_BYTES_PER_TOKEN = (2 * SHAPE["num_hidden_layers"] * SHAPE["num_key_value_heads"]
                      * SHAPE["head_dim"] * KV_BYTES)
TEMPLATE = ("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
            "{% if add_generation_prompt %}assistant:{% endif %}")
END_OF_TEXT = "<|endoftext|>"
N_MERGES = 8000  # with all 50,000 the output layer would take longer than a cached prompt
SHARES, LOADS = (1.0, 0.25), (0.5, 0.8)
N_ALONE = 20
AT_ONCE = 8
# Rates that are tried for the largest one within the SLO: multiples of the control's. The control's
# own, whose cache is always empty, need not be tried with all requests.
FIRST_RATIO, STEP, PRECISION = 2.1, 1.12, 1.06
N_TRIES, N_TRIES_CONTROL, N_CONTROL = 3, 5, 600
# llama.cpp parses answers, and ends some of random tokens with an error (0.8 %).
FAILED_SHARE = 0.02
LLAMA_SLOTS, LLAMA_SLOT_TOKENS = AT_ONCE, 4096
READY_SECONDS = 120

# name -> options; "default" has reordering, which the others have not
SYSTEMS: dict[str, list[str]] = {
    "control": ["--no-prefix-caching", "--cache-reorder-window", "0"],
    "default": [],
    "lru": ["--cache-policy", "lru", "--cache-reorder-window", "0"],
    "tree": ["--cache-reorder-window", "0"],
}


# --- the model ---

def gpt2_vocab(source: Path) -> tuple[dict[str, int], list[str]]:
    """The bytes, the first merges of GPT-2's release, and the end of a text; the ids are new."""
    lines = (source / "vocab.bpe").read_text(encoding="utf-8").split("\n")[1:]
    merges = [line for line in lines if line][:N_MERGES]
    ids = json.loads((source / "encoder.json").read_text(encoding="utf-8"))
    tokens = sorted((t for t in ids if len(t) == 1), key=ids.__getitem__)
    tokens += [m.replace(" ", "") for m in merges] + [END_OF_TEXT]
    return {t: i for i, t in enumerate(tokens)}, merges


def write_gpt2_tokenizer(source: Path, folder: Path) -> None:
    """tokenizer.json from the files of GPT-2's release."""
    vocab, merges = gpt2_vocab(source)
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
             "use_regex": True}
    end = {"id": vocab[END_OF_TEXT], "content": END_OF_TEXT, "single_word": False, "lstrip": False,
           "rstrip": False, "normalized": False, "special": True}
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "added_tokens": [end], "normalizer": None, "pre_tokenizer": level,
        "post_processor": None, "decoder": level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "vocab": vocab,
                  "continuing_subword_prefix": "", "end_of_word_suffix": "", "fuse_unk": False,
                  "merges": merges}}))
    (folder / "tokenizer_config.json").write_text(json.dumps(
        {"tokenizer_class": "GPT2Tokenizer", "bos_token": END_OF_TEXT, "eos_token": END_OF_TEXT,
         "add_bos_token": False, "chat_template": TEMPLATE}))


def write_model(folder: Path, data: Path) -> dict:
    """A directory for --load-format dummy. Returns its configuration."""
    config = json.loads((DEMO / "config.json").read_text()) | SHAPE
    if (data / "tok-gpt2").is_dir():
        write_gpt2_tokenizer(data / "tok-gpt2", folder)
        vocab, _ = gpt2_vocab(data / "tok-gpt2")
        config |= {"vocab_size": len(vocab), "bos_token_id": vocab[END_OF_TEXT],
                   "eos_token_id": vocab[END_OF_TEXT]}
        config.pop("pad_token_id", None)
    else:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(DEMO / name, folder / name)
    (folder / "config.json").write_text(json.dumps(config))
    return config


def write_gguf(folder: Path, config: dict) -> Path:
    """The same shape and tokenizer as a file for llama.cpp (needs NumPy)."""
    sys.path.insert(0, str(REPO / "tests" / "tools"))
    import dummy_gguf  # noqa: PLC0415
    import gguf_tokenizer  # noqa: PLC0415

    shape = Namespace(width=config["hidden_size"], layers=config["num_hidden_layers"],
                      heads=config["num_attention_heads"], kv_heads=config["num_key_value_heads"],
                      head_dim=config["head_dim"], ffn=config["intermediate_size"],
                      vocab=config["vocab_size"], type="bf16", output_type="bf16", untied=False)
    fields = {key: value for key, value in dummy_gguf.metadata(shape).items()
              if not key.startswith("tokenizer.")}
    fields |= gguf_tokenizer.tokenizer_fields(folder, pre="gpt-2")
    path = folder / "model.gguf"
    dummy_gguf.write_gguf(path, fields, list(dummy_gguf.tensors_of(shape)), 1)
    return path


# --- servers ---

class Tarn(common.Server):
    def __init__(self, model: Path, folder: Path, kv_bytes: int, *options: object) -> None:
        super().__init__([program("tarn-server"), "--model", str(model), "--load-format", "dummy",
                          "--port", "0", "--log-level", "warn", "--kv-cache-dtype", "bf16",
                          "--cache-dir", str(folder / "cache"), "--max-num-queued-reqs", "100000",
                          "--kv-device-bytes", str(kv_bytes), *map(str, options)])


class Llama(common.Server):
    """llama-server. The KV of prompts that left their slot is kept in --cache-ram."""

    def __init__(self, path: str, model: Path, kv_bytes: int, threads: int) -> None:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.command = [path, "--model", str(model), "--host", "127.0.0.1", "--port",
                        str(self.port), "--threads", str(threads), "--parallel", str(LLAMA_SLOTS),
                        "--ctx-size", str(LLAMA_SLOTS * LLAMA_SLOT_TOKENS), "--cache-prompt",
                        "--cache-ram", str(max(1, kv_bytes >> 20)), "--cache-type-k", "f16",
                        "--cache-type-v", "f16", "--jinja"]
        self.log = tempfile.NamedTemporaryFile("w+b", prefix="tarn-bench-log-")
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=self.log)
        # Nothing reads the pipe; the server writes its log to stderr.
        self.url = f"http://127.0.0.1:{self.port}"
        end = time.monotonic() + READY_SECONDS
        while not self.is_ready():
            if self.process.poll() is not None or time.monotonic() > end:
                self.process.kill()
                raise SystemExit(f"{' '.join(self.command)}\nis not ready: "
                                 f"{self.log_text()[-2000:]}")
            time.sleep(0.1)

    def is_ready(self) -> bool:
        with contextlib.suppress(OSError):
            return self.ask("GET", "/health")[0] == 200
        return False


# --- the runs ---

class Live:
    """The pieces of one scenario; `out` is what is saved."""

    def __init__(self, bench, save: Callable[[dict], None], known: dict | None) -> None:
        self.args, self.save = bench.args, save
        self.scenario: Scenario = bench.scenario(self.args.top_k, self.args.seed,
                                                 self.args.live_requests)
        self.folder = bench.folder / "live"
        self.data = self.scenario.write(self.folder / "data")
        self.model = self.folder / "model"
        self.model.mkdir()
        self.config = write_model(self.model, shared_data(self.args.data))
        about = {"scenario": self.scenario.describe(), "shape": SHAPE}
        same = known and all(known.get(key) == value for key, value in about.items())
        self.out: dict = known if same else {**about, "systems": {}}

    @contextlib.contextmanager
    def server(self, name: str, share: float) -> Iterator[common.Server]:
        kv_bytes = KV_BYTES_PER_TOKEN * self.n_tokens(share)
        if name == "llama.cpp":
            model = self.model / "model.gguf"
            if not model.exists():
                write_gguf(self.model, self.config)
            with Llama(self.args.llama_server, model, kv_bytes, os.cpu_count() or 1) as server:
                yield server
            return
        with Tarn(self.model, self.folder / name, kv_bytes, *SYSTEMS[name]) as server:
            yield server

    def n_tokens(self, share: float) -> int:
        """Tokens of KV: the share of all different paths, and room for what runs."""
        return (int(share * self.out.get("path_tokens", 0)) + ROOM_TOKENS) // BLOCK * BLOCK

    def load(self, name: str, share: float, *options: object) -> dict:
        """One run on a server of its own; llama.cpp gets the documents as text."""
        with self.server(name, share) as server:
            own = ["--documents-as", "text"] if name == "llama.cpp" else []
            command = [program("tarn-loadgen"), "--url", server.url, "--workload", "rag", "--data",
                       str(self.data), "--no-shuffle", "--docs-per-request", str(self.scenario.k),
                       "--seed", str(self.scenario.seed), "--output-len", "1", "--ignore-eos",
                       "--progress=false", "--quiet", "--json", "-", *own, *map(str, options)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
            if done.returncode != 0:
                raise SystemExit(f"{' '.join(command)}\nended with {done.returncode}: "
                                 f"{server.log_text()[-2000:]}")
            self.command = server.command
        return json.loads(done.stdout)

    def run(self, name: str, share: float, rate: float, count: int) -> dict:
        began = time.monotonic()
        result = self.load(name, share, "--rate", f"{rate:.6g}", "--count", count)
        return figures(result) | {"rate": rate, "wall_s": time.monotonic() - began}

    # --- pieces ---

    def measure_alone(self) -> None:
        """Tokens of all paths; TTFT and rate of the control without waiting."""
        if "unloaded_ttft_s" in self.out:
            return
        with self.server("control", 0) as server:
            sizes = [server.must("POST", "/tokenize", {"prompt": f"{d['title']}\n{d['text']}"})
                     ["count"] for d in self.scenario.corpus.documents]
        self.out["path_tokens"] = path_tokens(self.scenario.lists, sizes)
        alone = self.load("control", 0, "--concurrency", 1, "--count", N_ALONE)
        full = self.load("control", 0, "--concurrency", AT_ONCE, "--count",
                         min(300, self.scenario.count))
        self.out |= {"prompt_tokens": alone["total_input_tokens"] / alone["completed"],
                     "unloaded_ttft_s": alone["median_ttft_ms"] / 1e3,
                     "slo_s": SLO_FACTOR * alone["median_ttft_ms"] / 1e3,
                     "control_answered_per_s": full["request_throughput"]}
        self.save(self.out)

    def is_within(self, one: dict) -> bool:
        few = one["failed"] <= FAILED_SHARE * one["completed"]
        return one["mean_ttft_s"] <= self.out["slo_s"] and few

    def largest_rate(self, row: dict, name: str, share: float, rate: float) -> None:
        """The largest rate within the SLO of those that ran: tries, which are kept, and loads."""
        tries, count, n_tries = row.setdefault("tries", []), self.scenario.count, N_TRIES
        if name == "control":
            count, n_tries = min(N_CONTROL, count), N_TRIES_CONTROL

        def bounds() -> tuple[float | None, float | None]:
            ran = tries + list(row["loads"].values())
            return (max((r["rate"] for r in ran if self.is_within(r)), default=None),
                    min((r["rate"] for r in ran if not self.is_within(r)), default=None))

        while len(tries) < n_tries:
            good, bad = bounds()
            if good and bad and bad / good <= PRECISION:
                break
            rate = ((good * bad) ** 0.5 if good and bad
                    else max(rate, good * STEP) if good
                    else bad / STEP if bad else rate)
            one = self.run(name, share, rate, count)
            one["within"] = self.is_within(one)
            tries.append(one)
            self.save(self.out)
        row["largest_rate"] = bounds()[0] or 0.0

    def measure(self, name: str, share: float) -> None:
        """What is missing of a system: loads, then the largest rate."""
        key = f"{share:g}"
        row = self.out["systems"].setdefault(name, {}).setdefault(key, {"loads": {}})
        for load in LOADS if "control_largest_rate" in self.out else ():
            if f"{load:g}" not in row["loads"]:
                common.progress(f"live, {name}, memory {key}, load {load:g}")
                row["loads"][f"{load:g}"] = self.run(
                    name, share, load * self.out["control_largest_rate"], self.scenario.count)
                row["command"] = self.command
                self.save(self.out)
        if "largest_rate" not in row:
            common.progress(f"live, {name}, memory {key}, largest rate")
            control = self.out.get("control_largest_rate")
            self.largest_rate(row, name, share, FIRST_RATIO * control if control
                              else 0.85 * self.out["control_answered_per_s"])
        self.save(self.out)

    def add_ratios(self) -> None:
        control = self.out["systems"]["control"]["1"]
        for shares in self.out["systems"].values():
            for row in shares.values():
                if row.get("largest_rate"):
                    row["throughput_ratio"] = row["largest_rate"] / control["largest_rate"]
                for load, one in row["loads"].items():
                    one["ttft_ratio"] = control["loads"][load]["mean_ttft_s"] / one["mean_ttft_s"]
        self.save(self.out)

    def measure_all(self) -> dict:
        self.measure_alone()
        if "control_largest_rate" not in self.out:
            self.measure("control", 1.0)
            self.out["control_largest_rate"] = self.out["systems"]["control"]["1"]["largest_rate"]
        shares = SHARES[:1] if self.args.quick else SHARES
        order = [("control", 1.0), ("default", 1.0)]
        order += [("llama.cpp", 1.0)] if self.args.llama_server else []
        order += [(name, share) for share in shares for name in ("tree", "lru", "default")]
        for name, share in dict.fromkeys(order):
            self.measure(name, share)
            self.add_ratios()
        return self.out


def run(bench, save: Callable[[dict], None], known: dict | None) -> dict:
    return Live(bench, save, known).measure_all()


def targets_of(live: dict) -> list[tuple[str, float, float, bool]]:
    """Name, figure, target, and whether the target is a lower limit."""
    row = live.get("systems", {}).get("default", {}).get("1", {})
    rows = []
    if "ttft_ratio" in row.get("loads", {}).get("0.5", {}):
        rows.append(("live: mean TTFT, 100 % of memory, half load: control / Tarn",
                     row["loads"]["0.5"]["ttft_ratio"], 4, True))
    if "throughput_ratio" in row:
        rows.append(("live: throughput within the SLO, 100 %: Tarn / control",
                     row["throughput_ratio"], 2.1, True))
    return rows
