"""serving.py - a tarn-server on a generated model, and tarn-loadgen against it.

The model has random weights; only its shape matters to a scheduler. Prompts are token ids. Each
id is a word of the tokenizer, so that each token becomes a piece of the stream.
"""
from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Iterator

REPO = Path(__file__).resolve().parents[3]
VOCAB = 4096
N_CORES = len(os.sched_getaffinity(0))
STOP_SECONDS = 60
TURN_S = 0.1


def build_dir() -> Path:
    return Path(os.environ.get("TARN_BUILD_DIR") or REPO / "build")


def program(name: str) -> str:
    path = build_dir() / name
    if not path.is_file():
        raise SystemExit(f"{name} is not in {build_dir()}: build it, or set TARN_BUILD_DIR")
    return str(path)


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

class Server:
    """A server process, until the end of its `with`."""

    def __init__(self, model: Path, *options: object, core: int | None = None) -> None:
        """core: where all its threads start; every turn by the clock they move to the next core, so
        that two servers on different cores swap. On a shared machine a core that is slower for a
        while then slows both servers equally."""
        self.command = [program("tarn-server"), "--model", str(model), "--load-format", "dummy",
                        "--port", "0", "--log-level", "warn", "--max-num-queued-reqs", "1000000",
                        "--cache-dir", str(model / "cache"), *map(str, options)]
        self.log = tempfile.NamedTemporaryFile("w+b", prefix="tarn-schedbench-log-")
        if core is not None:
            cores = sorted(os.sched_getaffinity(0))
            self.command = ["taskset", "-c", str(cores[core % len(cores)]), *self.command]
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=self.log)
        self.port = 0
        assert self.process.stdout
        for line in self.process.stdout:
            found = re.search(rb"http://[^ ]*:(\d+)", line)
            if found:
                self.port = int(found[1])
                break
        if not self.port:
            self.process.wait()
            raise SystemExit(f"{' '.join(self.command)}\nended: {self.log_text()[-2000:]}")
        self.url = f"http://127.0.0.1:{self.port}"
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

    def log_text(self) -> str:
        return Path(self.log.name).read_text(errors="replace")

    def get(self, path: str) -> str:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", path)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        if answer.status != 200:
            raise SystemExit(f"{path}: {answer.status} {text[:200]}")
        return text

    def metric(self, name: str) -> float:
        """The sum over the label sets of one metric."""
        values = [line.rsplit(" ", 1)[1] for line in self.get("/metrics").splitlines()
                  if re.match(re.escape(name) + r"[{ ]", line)]
        if not values:
            raise SystemExit(f"/metrics has no {name}")
        return sum(map(float, values))

    def cpu_s(self) -> dict[str, float]:
        """CPU seconds of each thread so far."""
        tick = os.sysconf("SC_CLK_TCK")
        used = {}
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            with contextlib.suppress(OSError):  # a thread may end meanwhile
                fields = (task / "stat").read_text().rsplit(")", 1)[1].split()
                used[task.name] = (int(fields[11]) + int(fields[12])) / tick
        return used

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        assert self.process.stdout
        self.process.stdout.close()
        if status:
            raise SystemExit(f"{' '.join(self.command)}\nended with {status}: "
                             f"{self.log_text()[-2000:]}")
        self.log.close()


# --- the load ---

class Load:
    """One run of tarn-loadgen."""

    def __init__(self, url: str, *options: object) -> None:
        with tempfile.TemporaryDirectory(prefix="tarn-schedbench-") as folder:
            out, raw = Path(folder, "out.json"), Path(folder, "raw.jsonl")
            command = [program("tarn-loadgen"), "--url", url, "--endpoint", "completions",
                       "--prompt-format", "ids", "--ignore-eos", "--quiet", "--progress=false",
                       "--json", str(out), "--raw", str(raw), *map(str, options)]
            start, words = time.monotonic(), Path(folder, "words")
            with words.open("w") as err:
                run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=err)
                _, status, usage = os.wait4(run.pid, 0)
            run.returncode = os.waitstatus_to_exitcode(status)
            self.wall_s = time.monotonic() - start
            self.cpu_s = usage.ru_utime + usage.ru_stime
            if run.returncode != 0:
                raise SystemExit(f"{' '.join(command)}\nended with {run.returncode}: "
                                 f"{words.read_text(errors='replace')[-2000:]}")
            self.result = json.loads(out.read_text())
            with raw.open() as lines:
                self.requests = [json.loads(line) for line in lines]

    def measured(self) -> list[dict]:
        return [r for r in self.requests if r["measured"] and r["end"] == "ok"]
