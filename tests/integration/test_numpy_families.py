#!/usr/bin/env python3
"""Logits of every family equal those of an independent NumPy forward pass (float64).

Weights and KV are f32, so errors relative to the largest |logit| of a row stay within 1e-4. The
contexts have more than one segment of 256 tokens, and windows begin in the middle of blocks. Some
cases change a model's config.json, where goldens have other values.
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
import numpy_families  # noqa: E402

TOLERANCE = 1e-4
N_IDS = 330
VOCAB = 300
CASES: list[tuple[str, dict[str, Any], str]] = [
    ("mistral", {"sliding_window": 100, "head_dim": 64}, "--chunk 200"),
    ("mistral", {"sliding_window": 300, "head_dim": 20}, "--device ref"),
    ("qwen2", {}, "--chunk 7"),
    ("qwen2-window", {"sliding_window": 65, "num_attention_heads": 6, "head_dim": 20},
     "--chunk 50"),
    ("qwen2-yarn", {}, "--chunk 64"),
    ("qwen3", {"head_dim": 32, "tie_word_embeddings": True}, "--chunk 64"),
    ("phi3", {"sliding_window": 257}, "--chunk 300"),
    ("phi3-long", {"max_position_embeddings": 512, "original_max_position_embeddings": 400},
     "--chunk 64"),
    ("phi4-mini", {"max_position_embeddings": 512}, "--chunk 64"),
    ("gemma2", {"head_dim": 64, "sliding_window": 90}, "--chunk 128"),
    ("gemma2", {"sliding_window": 1}, "--cpu-variant portable --chunk 33"),
    ("gemma3", {"sliding_window": 33, "head_dim": 64}, "--chunk 100"),
    ("smollm3", {}, "--chunk 64"),
    ("olmo2", {}, "--chunk 64"),
    ("granite", {"attention_bias": True, "mlp_bias": True}, "--chunk 64"),
    ("stablelm", {}, "--chunk 64"),
    ("mixtral", {"sliding_window": 100}, "--chunk 64"),
    ("mixtral", {"num_local_experts": 3, "num_experts_per_tok": 3}, "--device ref"),
    ("qwen2-moe", {"norm_topk_prob": True}, "--chunk 50"),
    ("qwen2-moe", {"num_experts": 70, "num_experts_per_tok": 4}, "--cpu-variant portable"),
    ("qwen3-moe", {"num_experts": 40, "num_experts_per_tok": 8}, "--chunk 200"),
    ("qwen3-moe", {"norm_topk_prob": False}, "--device ref --chunk 33"),
    ("olmoe", {"norm_topk_prob": True}, "--chunk 64"),
    ("bailing-moe", {"routed_scaling_factor": 2.5, "use_bias": True}, "--chunk 64"),
    ("bailing-moe", {"num_shared_experts": 0, "first_k_dense_replace": 0}, "--chunk 7"),
]


def check(family: str, changes: dict[str, Any], run: str, seed: int) -> bool:
    ids = np.random.default_rng(seed).integers(0, VOCAB, N_IDS).tolist()
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder)
        make_tiny_family.make(model, family, seed=seed, vocab=VOCAB, changes=changes)
        raw = tarn_test.run_logits(model, ids, "--dtype", "f32", "--kv-dtype", "f32",
                                   *run.split())
        expected = numpy_families.load(model, N_IDS).logits(ids)
    ours = np.array(raw, dtype=np.float64).reshape(expected.shape)
    error = float((np.abs(ours - expected).max(axis=1) / np.abs(expected).max(axis=1)).max())
    good = error <= TOLERANCE  # False for NaN
    print(f"{'ok  ' if good else 'FAIL'} {error:.2e} {family} {changes or ''} {run}", flush=True)
    return good


def main() -> None:
    results = [check(*case, seed=i + 1) for i, case in enumerate(CASES)]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
