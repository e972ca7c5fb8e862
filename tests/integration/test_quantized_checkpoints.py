#!/usr/bin/env python3
"""Quantized checkpoints decode exactly: their logits have the bits of a plain checkpoint with the
dequantized weights.

Both are computed in f32 from weights that tests/tools/quantize_checkpoint.py made with NumPy. The
families differ in what stands beside quantized weights: fused projections, a tied embedding,
biases, norms, and widths that end within a group.
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

N_IDS = 24
VOCAB = 304
WIDE = {"hidden_size": 64, "intermediate_size": 136, "num_attention_heads": 4}
# For formats: a family, changes of its config, and whether the output layer is quantized.
FAMILIES: list[tuple[str, dict[str, Any], bool]] = [
    ("llama", WIDE, True), ("phi3", WIDE, False), ("qwen2", WIDE, False),
    ("granite", {"attention_bias": True, "mlp_bias": True}, False)]


def logits(model: Path, ids: list[int]) -> bytes:
    raw = tarn_test.run_logits(model, ids, "--dtype", "f32", "--kv-dtype", "f32",
                               "--quantization", "none")
    return raw.tobytes()


def check(name: str, case: int) -> bool:
    family, changes, head = FAMILIES[case % len(FAMILIES)]
    ids = np.random.default_rng(case).integers(0, VOCAB, N_IDS).tolist()
    with tempfile.TemporaryDirectory() as folder:
        source, quantized, plain = (Path(folder) / d for d in ("source", "quantized", "plain"))
        make_tiny_family.make(source, family, seed=case + 1, vocab=VOCAB, changes=changes)
        quantize_checkpoint.quantize(source, quantized, name, plain=plain, seed=case, head=head)
        ours, expected, original = logits(quantized, ids), logits(plain, ids), logits(source, ids)
    good = ours == expected and expected != original
    print(f"{'ok  ' if good else 'FAIL'} {name} {family}", flush=True)
    return good


def main() -> None:
    results = [check(name, i) for i, name in enumerate(quantize_checkpoint.FORMATS)]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
