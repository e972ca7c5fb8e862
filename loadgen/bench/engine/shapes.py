#!/usr/bin/env python3
"""Measure the memory and speed of models of usual sizes: rows of a Markdown table.

    loadgen/bench/engine/shapes.py [--build build] [--shapes 0.5B,1B] [--weights bf16,int8,int4]
                            [--repetitions 5] [--threads N] [--gb-max 20]
                            [--measure all|memory|nothing]

Shapes are those of known models, weights are random: speed and memory do not depend on their
values.

Measured: `memory` is the peak of a tarn-server until it is ready (weights and buffers; each token
in the KV cache adds `KV per token`). Speed is tarn-bench's: a prefill of 128 tokens, and one
decoding sequence after 512. The fastest repetition counts, because other work on the machine only
slows them down. `(void)` marks speeds measured while other work ran. Models larger than --gb-max
are skipped and named.

Arithmetic: `size` of the weights, the bytes that a decoded token reads, and the most tokens a
second that memory of 27 GB/s (what two cores of a cloud server read), 90 GB/s (two channels of
DDR5-5600) and 205 GB/s (eight of DDR4-3200) allows.
"""
from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPO = Path(__file__).resolve().parents[3]
# width, layers, heads, KV heads, head_dim, ffn, vocabulary, tied output, whose shape
SHAPES = {
    "0.5B": (1024, 28, 16, 8, 128, 3072, 50257, True, "the shape of kernels/cpu/PERFORMANCE.md"),
    "1B": (2048, 16, 32, 8, 64, 8192, 128256, True, "Llama-3.2-1B"),
    "3B": (3072, 28, 24, 8, 128, 8192, 128256, True, "Llama-3.2-3B"),
    "8B": (4096, 32, 32, 8, 128, 14336, 128256, False, "Llama-3.1-8B"),
}
KV_POOL_BYTES = 256 << 20
CEILINGS_GB_S = (27, 90, 205)
CONTEXT = 512  # of the decoding sequence
READY_SECONDS = 1200  # random weights of 8 billion parameters take minutes


def config(shape: str) -> dict:
    width, layers, heads, kv_heads, head_dim, ffn, vocabulary, tied, _ = SHAPES[shape]
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": width,
            "num_hidden_layers": layers, "num_attention_heads": heads,
            "num_key_value_heads": kv_heads, "head_dim": head_dim, "intermediate_size": ffn,
            "vocab_size": vocabulary, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5,
            "rope_theta": 500000.0, "tie_word_embeddings": tied, "torch_dtype": "bfloat16"}


def n_params(shape: str) -> int:
    width, layers, heads, kv_heads, head_dim, ffn, vocabulary, tied, _ = SHAPES[shape]
    layer = width * head_dim * (2 * heads + 2 * kv_heads) + 3 * width * ffn + 2 * width
    return layers * layer + vocabulary * width * (1 if tied else 2) + width


def kv_bytes_per_token(shape: str) -> int:
    _, layers, _, kv_heads, head_dim, *_ = SHAPES[shape]
    return 2 * layers * kv_heads * head_dim * 2  # K and V, bf16


def weight_bytes(shape: str, weights: str) -> tuple[float, float]:
    """Bytes of all weights, and of those that one decoded token reads. A group of int8 has 128
    weights, one of int4 has 32, each with a scale of two bytes; embedding and output keep 8 bits.
    If they are two matrices, a token reads one row of the embedding."""
    width, *_, vocabulary, tied, _ = SHAPES[shape]
    table = vocabulary * width
    layers = n_params(shape) - table * (1 if tied else 2)
    per_layer = {"bf16": 2, "int8": 1 + 2 / 128, "int4": 0.5 + 2 / 32}[weights]
    per_table = 2 if weights == "bf16" else 1 + 2 / 128
    read = layers * per_layer + table * per_table
    return read + (0 if tied else table * per_table), read


def options_of(model: str, weights: str, args: argparse.Namespace) -> list[str]:
    return ["--model", model, "--load-format", "dummy", "--dtype", "bf16", "--quantization",
            "none" if weights == "bf16" else weights, "--kv-device-bytes", str(KV_POOL_BYTES),
            "--threads", str(args.threads)]


def run_bench(args: argparse.Namespace, model: str, weights: str) -> dict:
    command = [str(args.build / "tarn-bench"), *options_of(model, weights, args), "--json",
               "--case", "prefill:128", "--case", f"decode:1:{CONTEXT}",
               "--repetitions", str(args.repetitions)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: status {done.returncode}\n{done.stderr}")
    return json.loads(done.stdout)


def server_bytes(args: argparse.Namespace, model: str, weights: str) -> tuple[int, float]:
    """Peak resident memory of a server that has just become ready, and its weights."""
    environment = {**os.environ, "TARN_PROFILE_COST": "false", "XDG_CACHE_HOME": model}
    command = [str(args.build / "tarn-server"), *options_of(model, weights, args), "--port", "0"]
    log = Path(model) / "log"
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environment)
    try:
        end = time.monotonic() + READY_SECONDS
        while " serves " not in log.read_text():
            if process.poll() is not None or time.monotonic() > end:
                sys.exit(f"{' '.join(command)}\n{log.read_text()}")
            time.sleep(0.2)
        status = Path(f"/proc/{process.pid}/status").read_text()
    finally:
        process.terminate()
        process.wait()
    loaded = re.search(r"parameters, ([\d.]+) MB as", log.read_text()).group(1)
    return int(re.search(r"VmHWM:\s+(\d+) kB", status).group(1)) * 1024, float(loaded) * 1e6


def measure(args: argparse.Namespace, shape: str, weights: str) -> tuple[str, str, str]:
    """Memory, prefill and decode; "-" for a figure that is not measured."""
    if args.measure == "nothing":
        return "-", "-", "-"
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config(shape)))
        for file in (REPO / "deploy/demo-model").glob("tokenizer*.json"):
            shutil.copy(file, folder)  # required by a server; its value does not matter here
        resident, loaded = server_bytes(args, folder, weights)
        if abs(loaded / weight_bytes(shape, weights)[0] - 1) > 0.02:
            sys.exit(f"{shape} {weights}: the server has {loaded:.0f} bytes of weights, not "
                     f"{weight_bytes(shape, weights)[0]:.0f}: correct weight_bytes()")
        memory = f"{resident / 1e9:.2f} GB"
        if args.measure == "memory":
            return memory, "-", "-"
        found = run_bench(args, folder, weights)
    rows = {row["phase"]: row for row in found["rows"]}
    void = " (void)" if found["limits"]["void"] else ""
    return (memory, f"{rows['prefill']['tok_s_max']:.0f}{void}",
            f"{rows['decode']['tok_s_max']:.1f}{void}")


def row(args: argparse.Namespace, shape: str, weights: str) -> str:
    total, read = weight_bytes(shape, weights)
    kv = kv_bytes_per_token(shape)
    token = read + CONTEXT * kv
    ceilings = [f"{gb_s * 1e9 / token:.0f}" for gb_s in CEILINGS_GB_S]
    cells = [shape, weights, f"{total / 1e9:.2f} GB", f"{kv // 1024} KB",
             *measure(args, shape, weights), f"{token / 1e9:.2f} GB", *ceilings]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--build", type=Path, default=REPO / "build")
    p.add_argument("--shapes", default=",".join(SHAPES))
    p.add_argument("--weights", default="bf16,int8,int4")
    p.add_argument("--repetitions", type=int, default=5)
    p.add_argument("--threads", type=int, default=0, help="0: all cores")
    p.add_argument("--gb-max", type=float, default=20, help="weights above are left out")
    p.add_argument("--measure", choices=["all", "memory", "nothing"], default="all")
    args = p.parse_args()
    for shape in args.shapes.split(","):
        if shape not in SHAPES:
            p.error(f"no shape {shape}: one of {', '.join(SHAPES)}")
    print("| model | weights | size | KV per token | memory | prefill tok/s | decode tok/s | "
          "read per token | " + " | ".join(f"{gb_s} GB/s" for gb_s in CEILINGS_GB_S) + " |")
    print("|---" * (8 + len(CEILINGS_GB_S)) + "|", flush=True)
    for shape in args.shapes.split(","):
        for weights in args.weights.split(","):
            if weight_bytes(shape, weights)[0] > args.gb_max * 1e9 and args.measure != "nothing":
                print(f"{shape} {weights} left out: over {args.gb_max} GB", file=sys.stderr)
            else:
                print(row(args, shape, weights), flush=True)


if __name__ == "__main__":
    main()
