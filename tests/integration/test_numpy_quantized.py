#!/usr/bin/env python3
"""Quantized models give the logits that their quantized numbers stand for.

The engine against NumPy (float64, tests/tools/numpy_quantized.py), which quantizes weights and
activations by itself. Both see the same integers, and so the logits of a row differ by less than
1e-6 of the largest: unless an activation, in it or in an earlier row, lies so near to the middle
between two integers that float32 and float64 round it apart. Then the rows from there on are off by
what one step of one activation does, about 1e-2. The wider the model the sooner that happens; with
40 rows most are still before it, and one in twenty of
each case and of each type must be EXACT (a wrong definition has none), and no row worse than WORST.
"""
from __future__ import annotations

import sys
import tempfile
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "tests" / "tools"))
import tarn_test  # noqa: E402

tarn_test.need_numpy()
import numpy as np  # noqa: E402
import make_tiny_model  # noqa: E402
from numpy_quantized import QuantizedLlama  # noqa: E402

N_IDS = 40
VOCAB = 300
EXACT = 1e-5
SHARE_EXACT = 0.05
WORST = 0.1
KINDS = [("int8", 32), ("int8", 128), ("int4", 32), ("int4", 128)]
# Options of make_tiny_model, options of tarn-logits. Sizes end inside groups, quads and panels.
CASES = [
    ("--heads 4 --kv-heads 2 --head-dim 16 --tied", ""),
    ("--heads 6 --kv-heads 3 --head-dim 20 --dim 60 --ffn 71", "--chunk 7 --threads 2"),
    ("--heads 4 --kv-heads 2 --head-dim 64 --dim 96 --ffn 200 --dtype bf16", "--chunk 1"),
    ("--heads 2 --kv-heads 2 --head-dim 10 --dim 37 --ffn 133 --bias --dtype f16", ""),
    ("--heads 4 --kv-heads 2 --head-dim 16 --tied --dim 36", "--device ref"),
]


def row_errors(model: Path, kind: str, group: int, run: str, seed: int) -> np.ndarray:
    ids = np.random.default_rng(seed).integers(0, VOCAB, N_IDS).tolist()
    expected = QuantizedLlama.load(model, kind, group).logits(ids)
    raw = tarn_test.run_logits(model, ids, "--kv-dtype", "f32", "--quantization", kind,
                               "--quantization-group", str(group), *run.split())
    ours = np.frombuffer(raw, dtype=np.float32).reshape(expected.shape)
    return np.abs(ours - expected).max(axis=1) / np.abs(expected).max(axis=1)


def run_case(options: str, run: str, seed: int) -> list[np.ndarray]:
    """One array of errors per kind."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        arguments = [folder, "--vocab", str(VOCAB), "--seed", str(seed), *options.split()]
        make_tiny_model.make(make_tiny_model.parser().parse_args(arguments))
        for kind, group in KINDS:
            errors = row_errors(Path(folder), kind, group, run, seed)
            print(f"{kind} group {group:3}: median {np.median(errors):.1e}, worst "
                  f"{errors.max():.1e}  {options} {run}", flush=True)
            found.append(errors)
    return found


def main() -> None:
    seed = int(sys.argv[2]) if sys.argv[1:2] == ["--seed"] else 0
    errors = np.array([run_case(options, run, seed + i)
                       for i, (options, run) in enumerate(CASES)])
    exact = errors <= EXACT  # [case, kind, row]; False for NaN
    good = bool((errors <= WORST).all())
    print(f"{'ok  ' if good else 'FAIL'} worst row {errors.max():.1e}, bound {WORST:.0e}")
    names = [options for options, _ in CASES] + [f"{kind} group {group}" for kind, group in KINDS]
    for name, share in zip(names, [*exact.mean(axis=(1, 2)), *exact.mean(axis=(0, 2))]):
        enough = share >= SHARE_EXACT
        print(f"{'ok  ' if enough else 'FAIL'} {100 * share:.0f} % exact rows: {name}")
        good = good and enough
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
