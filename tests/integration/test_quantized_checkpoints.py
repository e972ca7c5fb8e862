#!/usr/bin/env python3
"""Quantized checkpoints decode exactly: their logits have the bits of a plain checkpoint with the
dequantized weights.

Both are computed in f32 from weights that tests/tools/quantize_checkpoint.py made with NumPy. The
families differ in what stands beside quantized weights: fused projections, a tied embedding,
biases, norms, experts, and widths that end within a group. A checkpoint of another method is
refused by name.

    test_quantized_checkpoints.py [--emulated-gpu]     on the emulated GPU, one format of each codec
"""
from __future__ import annotations

import json
import subprocess
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
    ("granite", {"attention_bias": True, "mlp_bias": True}, False),
    ("qwen3-moe", {"hidden_size": 64, "moe_intermediate_size": 40}, False)]
ON_GPU = ["gptq-desc", "awq", "ct-packed-asym", "ct-int", "fp8-block-128"]


def logits(model: Path, ids: list[int], *options: str) -> bytes:
    raw = tarn_test.run_logits(model, ids, "--dtype", "f32", "--kv-dtype", "f32",
                               "--quantization", "none", *options)
    return raw.tobytes()


def check(name: str, case: int, *options: str) -> bool:
    family, changes, head = FAMILIES[case % len(FAMILIES)]
    ids = np.random.default_rng(case).integers(0, VOCAB, N_IDS).tolist()
    with tempfile.TemporaryDirectory() as folder:
        source, quantized, plain = (Path(folder) / d for d in ("source", "quantized", "plain"))
        make_tiny_family.make(source, family, seed=case + 1, vocab=VOCAB, changes=changes)
        quantize_checkpoint.quantize(source, quantized, name, plain=plain, seed=case, head=head)
        ours, expected, original = (logits(d, ids, *options)
                                    for d in (quantized, plain, source))
    good = ours == expected and expected != original
    print(f"{'ok  ' if good else 'FAIL'} {name} {family}", flush=True)
    return good


def refuses() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        config = make_tiny_family.make(Path(folder), "llama", vocab=VOCAB)
        config["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_4bit": True,
                                         "bnb_4bit_quant_type": "nf4"}
        (Path(folder) / "config.json").write_text(json.dumps(config))
        done = subprocess.run([tarn_test.program("tarn-logits"), folder, "/dev/null", "/dev/null"],
                              capture_output=True, text=True, check=False)
    good = done.returncode == 1 and "bitsandbytes (nf4) is not supported" in done.stderr
    print(f"{'ok  ' if good else 'FAIL'} bitsandbytes is refused: {done.stderr.strip()}",
          flush=True)
    return good


def main() -> None:
    if "--emulated-gpu" in sys.argv:
        results = [check(name, i, "--device", "cuda") for i, name in enumerate(ON_GPU)]
    else:
        results = [check(name, i) for i, name in enumerate(quantize_checkpoint.FORMATS)]
        results.append(refuses())
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
