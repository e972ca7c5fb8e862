#!/usr/bin/env python3
"""An independent Llama forward pass in NumPy, float64, whole sequence at once.

    numpy_llama.py MODEL_DIR IDS_FILE [OUT.f32] [--kv-dtype f32|f16|bf16] [--kernels NAME]
                   [--print N]

Read a Hugging Face directory (config.json, *.safetensors) and write raw little-endian float32
logits [n_ids, vocab]. The program shares no code with the C engine and is simple, because the
engine is compared with it.

  h = embedding[ids]
  each layer: h += Wo attention(rope(Wq norm(h)), rope(Wk norm(h)), Wv norm(h))
              h += Wdown (silu(Wgate norm(h)) * (Wup norm(h)))
  logits = Whead norm(h)

Matrix instructions take both factors in bf16. ROUNDING says what a kernel set therefore rounds:
  products   activations, where weights are bf16
  attention  with KV in bf16 and whole tiles of dimensions: queries, scaled for a power of two, and
             the unnormalized weights of each segment (the sum they are divided by stays exact);
             in cpu-avx512bf16 with KV of one byte too, there weights times the scales of values
"""
from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
from hf_files import Tensors, load_weights, round_to  # noqa: E402

ROUNDING = {"cpu-avx512bf16": {"products", "attention"}, "cpu-amx": {"products", "attention"}}
LARGEST = {"int8": 127, "fp8": 448}  # numbers of KV of one byte
IN_BASE_2 = {"cpu-amx"}  # whose scores are in base 2, and heads of whole tiles
SEGMENT_TOKENS = 256
TILE_DIMS = 32


def rmsnorm(x: np.ndarray, w: np.ndarray, eps: float) -> np.ndarray:
    return w * x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)


def llama3_frequencies(freq: np.ndarray, s: dict) -> np.ndarray:
    """Llama 3.1: low frequencies are divided by `factor`, high ones kept, a smooth band between."""
    low, high = s["low_freq_factor"], s["high_freq_factor"]
    old_len = s["original_max_position_embeddings"]
    wavelength = 2 * math.pi / freq
    smooth = (old_len / wavelength - low) / (high - low)
    between = (1 - smooth) * freq / s["factor"] + smooth * freq
    out = np.where(wavelength > old_len / low, freq / s["factor"], freq)
    is_between = (wavelength <= old_len / low) & (wavelength >= old_len / high)
    return np.where(is_between, between, out)


def rope_frequencies(config: dict, head_dim: int) -> np.ndarray:
    """[head_dim / 2]"""
    scaling = dict(config.get("rope_scaling") or {})
    scaling.update(config.get("rope_parameters") or {})
    theta = scaling.get("rope_theta", config.get("rope_theta", 10000.0))
    freq = 1.0 / theta ** (np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return freq
    if kind == "linear":
        return freq / scaling["factor"]
    if kind == "llama3":
        return llama3_frequencies(freq, scaling)
    raise ValueError(f"rope_scaling of type {kind}")


def rope(x: np.ndarray, freq: np.ndarray) -> np.ndarray:
    """x [T, heads, d] at positions 0..T-1; pairs are (i, i + d/2)."""
    angle = np.arange(x.shape[0], dtype=np.float64)[:, None] * freq  # [T, d/2]
    cos, sin = np.cos(angle)[:, None, :], np.sin(angle)[:, None, :]
    a, b = np.split(x, 2, axis=-1)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def softmax_in_bf16(scores: np.ndarray, base: float, scales: np.ndarray) -> np.ndarray:
    """Each segment's weights are at most 1 and rounded, times the keys' scales, before the
    merge."""
    top = scores.max(axis=-1, keepdims=True)
    out = np.empty_like(scores)
    total = np.zeros_like(top)
    for begin in range(0, scores.shape[1], SEGMENT_TOKENS):
        part = scores[:, begin:begin + SEGMENT_TOKENS]
        part_top = np.maximum(part.max(axis=-1, keepdims=True), top - 1e4)  # -inf: no key is seen
        weights, scale = base ** (part - part_top), base ** (part_top - top)
        of = scales[begin:begin + SEGMENT_TOKENS]
        out[:, begin:begin + SEGMENT_TOKENS] = round_to(weights * of, "bf16") / of * scale
        total += weights.sum(axis=-1, keepdims=True) * scale
    return out / total


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, base: float = 0,
              largest: float = 0) -> np.ndarray:
    """q [T, H, d], k and v [T, G, d] -> [T, H * d]; causal; head h uses KV head h // (H / G). With
    a base of the scores, queries and probabilities are rounded to bf16; `largest`: the number that
    a value's largest element has, if values have scales."""
    n_rows, n_heads, d = q.shape
    group = n_heads // k.shape[1]
    mask = np.tril(np.ones((n_rows, n_rows), dtype=bool))
    out = np.empty_like(q)
    scales = np.abs(v).max(axis=-1) / largest if largest else np.ones(v.shape[:2])
    q = round_to(q / math.log(base) / math.sqrt(d), "bf16") if base else q / math.sqrt(d)
    for h in range(n_heads):
        scores = np.where(mask, q[:, h] @ k[:, h // group].T, -np.inf)
        weights = (softmax_in_bf16(scores, base, scales[:, h // group]) if base
                   else softmax(scores))
        out[:, h] = weights @ v[:, h // group]
    return out.reshape(n_rows, n_heads * d)


class NumpyLlama:
    """kv_dtype: K and V are rounded to it before any row attends to them, as a cache does.
    kernels: the name of a kernel set; the values that ROUNDING lists for it are rounded too."""

    def __init__(self, config: dict, weights: Tensors, kv_dtype: str | None = None,
                 kernels: str = "") -> None:
        self.config = config
        self.weights = weights
        self.kv_dtype = kv_dtype
        self.n_heads = config["num_attention_heads"]
        self.n_kv_heads = config.get("num_key_value_heads") or self.n_heads
        self.head_dim = config.get("head_dim") or config["hidden_size"] // self.n_heads
        self.freq = rope_frequencies(config, self.head_dim)
        self.tied = bool(config.get("tie_word_embeddings"))
        rounded = ROUNDING.get(kernels, set())
        self.products_in_bf16 = "products" in rounded and config.get("torch_dtype") == "bfloat16"
        is_tiled = kernels in IN_BASE_2
        self.attention_in_bf16 = ("attention" in rounded and
                                  (kv_dtype == "bf16" or (kv_dtype in LARGEST and not is_tiled)) and
                                  (not is_tiled or self.head_dim % TILE_DIMS == 0))
        self.base = (2 if kernels in IN_BASE_2 else math.e) if self.attention_in_bf16 else 0

    @staticmethod
    def load(model_dir: Path, kv_dtype: str | None = None, kernels: str = "") -> NumpyLlama:
        config = json.loads((model_dir / "config.json").read_text())
        return NumpyLlama(config, load_weights(model_dir), kv_dtype, kernels)

    def product(self, x: np.ndarray, name: str) -> np.ndarray:
        x = round_to(x, "bf16") if self.products_in_bf16 else x
        return x @ self.weights[name + ".weight"].astype(np.float64).T

    def linear(self, x: np.ndarray, name: str) -> np.ndarray:
        y = self.product(x, name)
        bias = self.weights.get(name + ".bias")
        return y if bias is None else y + bias.astype(np.float64)

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        w = self.weights[name + ".weight"].astype(np.float64)
        return rmsnorm(x, w, self.config.get("rms_norm_eps", 1e-6))

    def heads(self, x: np.ndarray, n: int) -> np.ndarray:
        return x.reshape(x.shape[0], n, self.head_dim)

    def attend(self, x: np.ndarray, p: str) -> np.ndarray:
        q = rope(self.heads(self.linear(x, p + "q_proj"), self.n_heads), self.freq)
        k = rope(self.heads(self.linear(x, p + "k_proj"), self.n_kv_heads), self.freq)
        v = self.heads(self.linear(x, p + "v_proj"), self.n_kv_heads)
        if self.kv_dtype:
            k, v = round_to(k, self.kv_dtype), round_to(v, self.kv_dtype)
        return self.linear(attention(q, k, v, self.base, LARGEST.get(self.kv_dtype, 0)),
                           p + "o_proj")

    def feed_forward(self, x: np.ndarray, p: str) -> np.ndarray:
        gate = self.linear(x, p + "gate_proj")
        silu = gate / (1.0 + np.exp(-gate))
        return self.linear(silu * self.linear(x, p + "up_proj"), p + "down_proj")

    def hidden(self, ids: list[int]) -> np.ndarray:
        """float64 [n_ids, dim], behind the final norm."""
        embedding = self.weights["model.embed_tokens.weight"]
        h = embedding[np.asarray(ids)].astype(np.float64)
        for i in range(self.config["num_hidden_layers"]):
            p = f"model.layers.{i}."
            h = h + self.attend(self.norm(h, p + "input_layernorm"), p + "self_attn.")
            h = h + self.feed_forward(self.norm(h, p + "post_attention_layernorm"), p + "mlp.")
        return self.norm(h, "model.norm")

    def logits(self, ids: list[int]) -> np.ndarray:
        """float64 [n_ids, vocab]; row t predicts the token after ids[t]."""
        return self.output(self.hidden(ids))

    def output(self, h: np.ndarray) -> np.ndarray:
        if self.tied:
            return self.product(h, "model.embed_tokens")
        return self.linear(h, "lm_head")


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("model", type=Path)
    p.add_argument("ids", type=Path, help="token ids, separated by white space")
    p.add_argument("out", type=Path, nargs="?", help="raw float32 [n_ids, vocab]")
    p.add_argument("--kv-dtype", choices=["f32", "f16", "bf16"])
    p.add_argument("--kernels", choices=sorted(ROUNDING), default="",
                   help="round as this kernel set does")
    p.add_argument("--print", type=int, default=0, metavar="N", dest="n_print",
                   help="print the best N ids and logits of each position")
    args = p.parse_args()
    ids = [int(word) for word in args.ids.read_text().split()]
    logits = NumpyLlama.load(args.model, args.kv_dtype, args.kernels).logits(ids)
    if args.out:
        args.out.write_bytes(logits.astype("<f4").tobytes())
    for pos, row in enumerate(logits if args.n_print else []):
        best = np.argsort(-row)[:args.n_print]
        print(pos, ids[pos], " ".join(f"{i}:{row[i]:.6f}" for i in best))


if __name__ == "__main__":
    main()
