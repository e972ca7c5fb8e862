#!/usr/bin/env python3
"""Times OpenVINO on a decoder of Llama's shape with random weights; a peer of bench_compare.py.

    openvino_peer.py --config DIR --type bf16|int8|int4 --case prefill:512|decode:1:0
                     --precision f32|bf16 --threads 2

The graph is built from config.json with the operations that OpenVINO's plugin fuses: RMS norm,
rotation, scaled dot product attention, and products that decompress their weights (int8 by row,
int4 in groups of 32). bench_compare.py starts the program once and has it compile the graph, which
takes seconds; then each line on standard input asks for a figure, answered by {"tok_s": N}.

--precision is OpenVINO's inference precision. With f32 its products with quantized weights quantize
activations too, in groups of 32; with bf16 they multiply in bf16.

The graph has no KV cache, so a context is refused, and a decode step sees itself alone, which
leaves out reading KV. Needs the package openvino.
"""
from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np
import openvino as ov
from openvino import opset13 as op

GROUP = 32       # elements of an int4 weight that share a scale
SECONDS = 1.0    # of a figure at least


class Graph:
    """The decoder for n_tokens rows; only the last one's logits are computed."""

    def __init__(self, config: dict, kind: str, n_tokens: int) -> None:
        self.kind, self.n_tokens = kind, n_tokens
        self.dim, self.ffn = config["hidden_size"], config["intermediate_size"]
        self.heads, self.kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.head_dim = config.get("head_dim") or self.dim // self.heads
        self.rng = np.random.default_rng(1)
        self.kept: list[np.ndarray] = []  # a 4-bit constant refers to its array's memory
        angle = np.outer(np.arange(n_tokens),
                         10000.0 ** (-np.arange(self.head_dim // 2) * 2 / self.head_dim))
        self.cos = np.tile(np.cos(angle), 2)[None, None].astype(np.float32)
        self.sin = np.tile(np.sin(angle), 2)[None, None].astype(np.float32)
        x = inputs = op.parameter([1, n_tokens, self.dim], ov.Type.f32)
        for _ in range(config["num_hidden_layers"]):
            x = self.layer(x)
        last = op.gather(self.norm(x), np.array([n_tokens - 1]), 1)
        self.model = ov.Model([self.product(last, config["vocab_size"], self.dim)], [inputs])

    def four_bits(self, packed: np.ndarray, shape: list[int]):
        self.kept.append(packed)
        return op.constant(ov.Tensor(packed, ov.Shape(shape), ov.Type.u4))

    def weight(self, n: int, k: int):
        rng = self.rng
        if self.kind == "bf16":
            values = op.constant(rng.standard_normal((n, k), np.float32) * 0.02, ov.Type.bf16)
            return op.convert(values, ov.Type.f32)
        by_row = self.kind == "int8"
        shape = [n, k] if by_row else [n, k // GROUP, GROUP]
        scales = [*shape[:-1], 1]
        if by_row:
            codes = op.constant(rng.integers(0, 256, shape, np.uint8))
            zero = op.constant(np.full(scales, 128, np.uint8))
        else:
            codes = self.four_bits(rng.integers(0, 256, n * k // 2, np.uint8), shape)
            zero = self.four_bits(np.full(n * k // GROUP // 2, 0x88, np.uint8), scales)
        scale = op.constant(rng.uniform(1e-4, 2e-4, scales).astype(np.float16))
        values = op.subtract(op.convert(codes, ov.Type.f16), op.convert(zero, ov.Type.f16))
        values = op.multiply(values, scale)
        if not by_row:
            values = op.reshape(values, [n, k], False)
        return op.convert(values, ov.Type.f32)

    def product(self, x, n: int, k: int):
        return op.matmul(x, self.weight(n, k), False, True)

    def norm(self, x):
        mean = op.reduce_mean(op.power(x, np.float32(2)), [-1], True)
        scale = op.divide(np.float32(1), op.sqrt(op.add(mean, np.float32(1e-5))))
        return op.multiply(op.multiply(x, scale), np.ones((1, 1, self.dim), np.float32))

    def by_head(self, x, n: int):
        return op.transpose(op.reshape(x, [0, 0, n, self.head_dim], True), [0, 2, 1, 3])

    def rotate(self, x):
        low, high = op.split(x, 3, 2).outputs()
        turned = op.concat([op.multiply(high, np.float32(-1)), low], 3)
        return op.add(op.multiply(x, self.cos), op.multiply(turned, self.sin))

    def shared(self, x):
        """KV heads, each repeated for the query heads that share it."""
        wide = op.broadcast(op.unsqueeze(x, 2),
                            [1, self.kv_heads, self.heads // self.kv_heads, self.n_tokens,
                             self.head_dim], "BIDIRECTIONAL")
        return op.reshape(wide, [1, self.heads, self.n_tokens, self.head_dim], False)

    def layer(self, x):
        width, kv_width = self.heads * self.head_dim, self.kv_heads * self.head_dim
        y = self.norm(x)
        q = self.rotate(self.by_head(self.product(y, width, self.dim), self.heads))
        k = self.rotate(self.by_head(self.product(y, kv_width, self.dim), self.kv_heads))
        v = self.by_head(self.product(y, kv_width, self.dim), self.kv_heads)
        y = op.scaled_dot_product_attention(q, self.shared(k), self.shared(v), causal=True)
        y = op.reshape(op.transpose(y, [0, 2, 1, 3]), [0, 0, width], True)
        x = op.add(x, self.product(y, self.dim, width))
        y = self.norm(x)
        y = op.multiply(op.swish(self.product(y, self.ffn, self.dim)),
                        self.product(y, self.ffn, self.dim))
        return op.add(x, self.product(y, self.dim, self.ffn))


def speed(request: ov.InferRequest, x: dict, n_tokens: int) -> float:
    n, begin = 0, time.perf_counter()
    while n == 0 or time.perf_counter() - begin < SECONDS:
        request.infer(x)
        n += 1
    return n * n_tokens / (time.perf_counter() - begin)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--config", type=Path, required=True)
    p.add_argument("--type", choices=["bf16", "int8", "int4"], required=True)
    p.add_argument("--case", required=True)
    p.add_argument("--precision", choices=["f32", "bf16"], required=True)
    p.add_argument("--threads", type=int, default=2)
    a = p.parse_args()
    phase, *numbers = a.case.replace("@", ":").split(":")
    n_tokens = int(numbers[0]) if phase == "prefill" else 1
    if numbers[1:] not in ([], ["0"]) or (phase == "decode" and numbers[0] != "1"):
        sys.exit("the graph has no KV cache: only prefill:N and decode:1:0 are timed")
    graph = Graph(json.loads((a.config / "config.json").read_text()), a.type, n_tokens)
    compiled = ov.compile_model(graph.model, "CPU", {
        "INFERENCE_NUM_THREADS": a.threads, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": a.precision})
    request = compiled.create_infer_request()
    x = {0: np.random.default_rng(2).standard_normal((1, n_tokens, graph.dim), np.float32)}
    request.infer(x)
    for _ in sys.stdin:
        print(json.dumps({"tok_s": speed(request, x, n_tokens)}), flush=True)


if __name__ == "__main__":
    main()
