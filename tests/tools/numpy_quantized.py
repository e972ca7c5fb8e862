"""NumpyLlama with int8 or int4 weights and int8 activations, written from the definitions alone.

The definitions are in kernels/pack.h for weights, and in the comment of gemm_params
(kernels/params.h) for activations. Nothing is packed: each weight is quantized and converted back.
"""
from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
from hf_files import Tensors, round_to  # noqa: E402
from numpy_llama import NumpyLlama  # noqa: E402

INT4_DIVISORS = (-8.0, -7.5, -8.5, -7.0, -9.0)
SCALE_MIN = 2.0 ** -126
QUANT_GROUP_MAX = 64


def pick(best: tuple | None, cost: np.ndarray, value: np.ndarray) -> tuple:
    """Row by row the value of least cost; of equals the one that came first."""
    if best is None:
        return cost, value
    better = cost < best[0]
    return np.where(better, cost, best[0]), np.where(better, value, best[1])


def to_scale(s: np.ndarray) -> np.ndarray:
    s = round_to(s.astype(np.float32), "bf16")
    return np.where(np.abs(s) < SCALE_MIN, np.copysign(np.float32(SCALE_MIN), s), s)


def int8_scale(x: np.ndarray) -> np.ndarray:
    """x [rows, group] -> [rows, 1]"""
    largest = np.abs(x).max(axis=1, keepdims=True)
    best = None
    for steps in (127, 126, 125, 124):
        s = to_scale(largest / np.float32(steps))
        best = pick(best, np.abs(largest - s * np.float32(steps)), s)
    return best[1]


def int4_scale(x: np.ndarray) -> np.ndarray:
    largest = np.abs(x).max(axis=1, keepdims=True)
    negative = (x == -largest).any(axis=1, keepdims=True)
    signed = np.where(negative, -largest, largest)
    best = None
    for divisor in INT4_DIVISORS:
        s = to_scale(signed * np.float32(1 / divisor))
        t = x.astype(np.float64) / s
        error = ((t - np.clip(np.rint(t), -8, 7)) * s) ** 2
        best = pick(best, error.sum(axis=1, keepdims=True), s)
    return best[1]


def quantized(w: np.ndarray, kind: str, group: int) -> np.ndarray:
    """w [N, K] as its quantized form stands for it, float64."""
    out = np.empty(w.shape)
    for k in range(0, w.shape[1], group):
        x = w[:, k:k + group].astype(np.float32)
        s = (int8_scale if kind == "int8" else int4_scale)(x)
        low, high = (-127, 127) if kind == "int8" else (-8, 7)
        steps = np.clip(np.rint(x * (np.float32(1) / s)), low, high)
        out[:, k:k + group] = steps * s.astype(np.float64)
    return out


def quantized_weights(weights: Tensors, kind: str, group: int) -> Tensors:
    """Norms and biases stay; embedding and output layer have 8 bits."""
    def one(name: str, w: np.ndarray) -> np.ndarray:
        if w.ndim < 2:
            return w
        is_table = name in ("model.embed_tokens.weight", "lm_head.weight")
        return quantized(w, "int8" if is_table else kind, group)
    return {name: one(name, w) for name, w in weights.items()}


def quantized_rows(x: np.ndarray, group: int) -> np.ndarray:
    """Activations for a product with weights in groups of `group`."""
    out = np.empty_like(x)
    size = min(group, QUANT_GROUP_MAX)
    for k in range(0, x.shape[-1], size):
        part = x[..., k:k + size]
        largest = np.abs(part).max(axis=-1, keepdims=True)
        scale = np.where(largest == 0, 1, largest) / 127
        out[..., k:k + size] = np.rint(part / scale) * scale
    return out


class QuantizedLlama(NumpyLlama):
    group: int

    @staticmethod
    def load(model_dir: Path, kind: str, group: int) -> QuantizedLlama:  # type: ignore[override]
        plain = NumpyLlama.load(model_dir)
        made = QuantizedLlama(plain.config, quantized_weights(plain.weights, kind, group))
        made.group = group
        return made

    def linear(self, x: np.ndarray, name: str) -> np.ndarray:
        return super().linear(quantized_rows(x, self.group), name)

    def output(self, h: np.ndarray) -> np.ndarray:
        return super().output(quantized_rows(h, self.group) if self.tied else h)
