#!/usr/bin/env python3
"""Quantized checkpoints that run as they are stored give the logits of their numbers.

The engine with --quantization auto against NumPy (float64) with the same weights, and activations
quantized by the definition in kernels/params.h. Once the weights are code * scale + offset with
scale and offset = -zero * scale rounded to f16, which is what the kernels have. Then rows differ by
less than EXACT until an activation lies so near to the middle between two integers that float32 and
float64 round it apart (test_numpy_quantized.py), and one row in twenty must be exact. Once they are
the numbers of the file, (code - zero) * scale: no row may be worse than WORST, which is what the
rounding of activations explains. Numbers of fp8 are multiplied as floats: by the reference kernels
exactly, by others perhaps with activations of bf16.
"""
from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "tests" / "tools"))
import tarn_test  # noqa: E402

tarn_test.need_numpy()
import numpy as np  # noqa: E402
import make_tiny_family  # noqa: E402
import quantize_checkpoint  # noqa: E402
from numpy_llama import NumpyLlama  # noqa: E402
from numpy_quantized import quantized, quantized_rows  # noqa: E402

N_IDS = 40
VOCAB = 304
EXACT = 1e-5
SHARE_EXACT = 0.05
WORST = 0.1
SHAPES: list[dict[str, Any]] = [
    {"hidden_size": 64, "intermediate_size": 136, "num_attention_heads": 4},
    {"hidden_size": 128, "intermediate_size": 264, "num_attention_heads": 4}]
# A format, whether the output layer is quantized, how it runs.
CASES = [("gptq", True, ""), ("gptq-8", False, "--chunk 7 --threads 2"),
         ("gptq-asym", True, ""), ("awq-rows", False, "--device ref"),
         ("ct-packed", False, "--chunk 1"), ("ct-int-group", False, ""), ("fp8-block", True, ""),
         ("fp8-tensor", True, "--device ref"), ("fp8-block-128", False, "--device ref"),
         ("ct-float", False, "--chunk 9")]
AS_FLOATS = ("fp8-tensor", "fp8-block-128", "ct-float")  # activations are floats, perhaps bf16
WHOLE_ROWS = ("gptq-8", "awq-rows")  # one scale a row: groups of 128
whole_numbers = quantize_checkpoint.whole_numbers


def as_kernels_have_them(w: np.ndarray, bits: int, symmetric: bool, rows: int, cols: int,
                         dtype: str, groups: np.ndarray | None = None) -> tuple[Any, ...]:
    """quantize_checkpoint.whole_numbers(), with other dequantized elements."""
    codes, zeros, stored, plain = whole_numbers(w, bits, symmetric, rows, cols, dtype, groups)
    is_bf16 = dtype == "BF16"
    scales = (stored[1].astype(np.uint32) << 16).view(np.float32) if is_bf16 else stored[1]

    def each(x: np.ndarray) -> np.ndarray:
        return quantize_checkpoint.spread(x.astype(np.float16).astype(np.float64), rows, cols,
                                          *w.shape)
    ours = codes * each(scales) + each(-zeros.astype(np.float32) * scales)
    return codes, zeros, stored, ours


class StoredLlama(NumpyLlama):
    """NumpyLlama whose products with quantized weights quantize activations."""
    head: bool
    group: int  # of weights

    def linear(self, x: np.ndarray, name: str) -> np.ndarray:
        plain = name == "lm_head" and not self.head
        return super().linear(x if plain else quantized_rows(x, self.group), name)


def reference(model: Path, name: str, head: bool) -> NumpyLlama:
    plain = NumpyLlama.load(model)
    weights = plain.weights
    if name in AS_FLOATS:
        return plain
    if name == "fp8-block":  # no whole groups of 128: int8 in groups of 32
        weights = {n: quantized(w, "int8", 32) if "_proj" in n or (head and "lm_head" in n) else w
                   for n, w in weights.items()}
    stored = StoredLlama(plain.config, weights)
    stored.head = head
    stored.group = 128 if name in WHOLE_ROWS else 32
    return stored


def row_errors(case: int) -> list[np.ndarray]:
    """Against the numbers of the kernels, and against those of the file."""
    name, head, run = CASES[case]
    ids = np.random.default_rng(case).integers(0, VOCAB, N_IDS).tolist()
    errors = []
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "source"
        make_tiny_family.make(source, "llama", seed=case + 1, vocab=VOCAB,
                              changes=SHAPES[case % 2])
        for i, numbers in enumerate((as_kernels_have_them, whole_numbers)):
            stored, plain = Path(folder) / f"stored{i}", Path(folder) / f"plain{i}"
            quantize_checkpoint.whole_numbers = numbers
            quantize_checkpoint.quantize(source, stored, name, plain=plain, seed=case, head=head)
            expected = reference(plain, name, head).logits(ids)
            raw = tarn_test.run_logits(stored, ids, "--dtype", "f32", "--kv-dtype", "f32",
                                       "--quantization", "auto", *run.split())
            ours = np.frombuffer(raw, dtype=np.float32).reshape(expected.shape)
            errors.append(np.abs(ours - expected).max(axis=1) / np.abs(expected).max(axis=1))
    return errors


def check(case: int) -> bool:
    name, _, run = CASES[case]
    errors, of_file = row_errors(case)
    share = float(np.mean(errors <= EXACT))
    least = 0 if name in AS_FLOATS and "ref" not in run else SHARE_EXACT
    good = share >= least and bool((errors <= WORST).all()) and bool((of_file <= WORST).all())
    print(f"{'ok  ' if good else 'FAIL'} {name}: least {errors.min():.1e}, median "
          f"{np.median(errors):.1e}, worst {errors.max():.1e}, {100 * share:.0f} % exact; with the "
          f"numbers of the file: worst {of_file.max():.1e}  {run}", flush=True)
    return good


def main() -> None:
    sys.exit(0 if all([check(i) for i in range(len(CASES))]) else 1)


if __name__ == "__main__":
    main()
