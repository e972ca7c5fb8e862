"""serving.py - a tarn-server on a generated model, and tarn-loadgen against it.

The model has random weights; only its shape matters to a scheduler. Prompts are token ids. Each
id is a word of the tokenizer, so that each token becomes a piece of the stream.
"""
from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Iterator

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import common  # noqa: E402
from common import REPO, program  # noqa: E402, F401

VOCAB = 4096
N_CORES = len(os.sched_getaffinity(0))
TURN_S = 0.1


# --- the model ---

def byte_letters() -> list[str]:
    """The 256 letters that stand for bytes in a byte-level vocabulary."""
    plain = [*range(0x21, 0x7f), *range(0xa1, 0xad), *range(0xae, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(b) if b in plain else chr(next(others)) for b in range(256)]


def write_tokenizer(folder: Path) -> None:
    words = byte_letters()
    words += [f"\u0120{i:x}" for i in range(len(words), VOCAB)]  # a blank and the id
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                  "use_regex": True}
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
        "normalizer": None, "pre_tokenizer": byte_level, "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None,
                  "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {word: i for i, word in enumerate(words)}, "merges": []}}))


class Shape:
    """The shape of a model in bf16."""

    def __init__(self, hidden: int, layers: int, heads: int, kv_heads: int, ffn: int,
                 context: int) -> None:
        self.hidden, self.layers, self.heads, self.kv_heads = hidden, layers, heads, kv_heads
        self.ffn, self.context = ffn, context

    def config(self) -> dict:
        return {"architectures": ["LlamaForCausalLM"], "hidden_size": self.hidden,
                "num_hidden_layers": self.layers, "num_attention_heads": self.heads,
                "num_key_value_heads": self.kv_heads, "head_dim": self.hidden // self.heads,
                "intermediate_size": self.ffn, "vocab_size": VOCAB,
                "max_position_embeddings": self.context, "rms_norm_eps": 1e-5,
                "rope_theta": 10000, "tie_word_embeddings": False, "torch_dtype": "bfloat16"}

    def kv_bytes_per_token(self) -> int:
        return 2 * 2 * self.layers * self.kv_heads * (self.hidden // self.heads)

    def describe(self) -> dict:
        return {"hidden": self.hidden, "layers": self.layers, "heads": self.heads,
                "kv_heads": self.kv_heads, "ffn": self.ffn, "context": self.context,
                "vocab": VOCAB, "kv_bytes_per_token": self.kv_bytes_per_token()}


@contextlib.contextmanager
def model_files(shape: Shape) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tarn-schedbench-") as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(shape.config()))
        write_tokenizer(folder)
        yield folder


# --- the server ---

class Server(common.Server):
    """tarn-server on a model, until the end of its `with`."""

    def __init__(self, model: Path, *options: object, core: int | None = None) -> None:
        """core: where all its threads start; every turn by the clock they move to the next core, so
        that two servers on different cores swap. On a shared machine a core that is slower for a
        while then slows both servers equally."""
        command = [program("tarn-server"), "--model", str(model), "--load-format", "dummy",
                   "--port", "0", "--log-level", "warn", "--max-num-queued-reqs", "1000000",
                   "--cache-dir", str(model / "cache"), *map(str, options)]
        if core is not None:
            cores = sorted(os.sched_getaffinity(0))
            command = ["taskset", "-c", str(cores[core % len(cores)]), *command]
        super().__init__(command)
        if core is not None:
            threading.Thread(target=self.take_turns, args=(core,), daemon=True).start()

    def take_turns(self, core: int) -> None:
        cores = sorted(os.sched_getaffinity(0))
        while self.process.poll() is None:
            turn = int(time.monotonic() / TURN_S)
            here = {cores[(core + turn) % len(cores)]}
            with contextlib.suppress(OSError):  # the process may end meanwhile
                for tid in os.listdir(f"/proc/{self.process.pid}/task"):
                    with contextlib.suppress(ProcessLookupError):
                        os.sched_setaffinity(int(tid), here)
            time.sleep(max(0.0, (turn + 1) * TURN_S - time.monotonic()))


def buckets(server: Server, name: str) -> list[tuple[float, float]]:
    """A histogram: upper bounds, and how many values are at most so large."""
    found = re.findall(re.escape(name) + r'_bucket\{.*le="([^"]+)"\} (\S+)', server.get("/metrics"))
    return [(float(le), float(n)) for le, n in found]


def quantile(before: list[tuple[float, float]], after: list[tuple[float, float]],
             q: float) -> float:
    """Of what was counted between the two, interpolated in its bucket."""
    counts = [(le, n - old) for (le, n), (_, old) in zip(after, before)]
    want, low, n_low = q * counts[-1][1], 0.0, 0.0
    for le, n in counts:
        if n >= want:
            return low if le == float("inf") else low + (le - low) * (want - n_low) / (n - n_low)
        low, n_low = le, n
    return low


# --- the load ---

class Load(common.Load):
    """One run of tarn-loadgen with prompts of token ids."""

    def __init__(self, url: str, *options: object) -> None:
        super().__init__(url, "--endpoint", "completions", "--prompt-format", "ids", *options)
