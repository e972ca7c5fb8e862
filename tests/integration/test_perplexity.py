#!/usr/bin/env python3
"""The cost of quantization: the perplexity of a real model on real text, compared with f32.

stories260K reads windows of War and Peace, spread over the whole book; the mean negative
log-likelihood of the tokens gives a perplexity for each type of weights and of KV. The perplexity
must not grow by more than BOUNDS and KV_BOUNDS say. All runs see the same windows, so that few are
enough: the differences between windows cancel.

    test_perplexity.py [--windows N] [--all] [tarn-logits options]

--all also measures the group sizes and types that have no bound. Options such as `--device ref` or
`--cpu-variant avx2` go to every run but that of f32.
"""
from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "tests" / "tools"))
import tarn_test  # noqa: E402

MODEL = tarn_test.shared_data("model-stories260K")
BOOK = tarn_test.shared_data("text-war-and-peace")
tarn_test.need_numpy()
import numpy as np  # noqa: E402
import stories_to_hf  # noqa: E402

VOCAB = 512
WINDOW_TOKENS = 512    # the model's context
WINDOW_CHARS = 2000    # more than enough text for them
# Growth of the perplexity, as a share. int8 is near enough to f32 for its sign to be chance.
BOUNDS = {("int8", 32): 0.003, ("int8", 128): 0.003, ("int4", 32): 0.04}
UNBOUND = [("int4", 128)]
KV_BOUNDS = {"int8": 0.003, "fp8": 0.005}
KV_UNBOUND = ["f16", "bf16"]


def read_windows(model: Path, n: int) -> list[list[int]]:
    text = next(BOOK.glob("*.txt")).read_text(encoding="utf-8", errors="replace")
    step = (len(text) - WINDOW_CHARS) // n
    windows = []
    with tarn_test.server(model, "--served-model-name", "stories") as url:
        for i in range(n):
            piece = text[i * step:i * step + WINDOW_CHARS]
            ids = tarn_test.post(url + "/tokenize", {"prompt": piece})["tokens"]
            windows.append(ids[:WINDOW_TOKENS])
    if any(len(ids) < WINDOW_TOKENS for ids in windows):
        raise SystemExit(f"a window of {WINDOW_CHARS} characters has too few tokens")
    return windows


def likelihoods(model: Path, ids: list[int], kv: str, options: list[str]) -> np.ndarray:
    """Negative log-likelihood of each token but the first."""
    raw = tarn_test.run_logits(model, ids, "--dtype", "f32", "--kv-dtype", kv, *options)
    logits = np.frombuffer(raw, dtype=np.float32).reshape(len(ids), VOCAB).astype(np.float64)
    top = logits.max(axis=1, keepdims=True)
    log_sum = np.log(np.exp(logits - top).sum(axis=1)) + top[:, 0]
    return (log_sum[:-1] - logits[np.arange(len(ids) - 1), ids[1:]])


def mean_nll(model: Path, windows: list[list[int]], kv: str, options: list[str]) -> float:
    return float(np.mean([likelihoods(model, ids, kv, options) for ids in windows]))


def check(what: str, bound: float | None, nll: float, nll_f32: float) -> bool:
    growth = float(np.exp(nll - nll_f32)) - 1
    # False for NaN. The lower bound: a result much better than f32 shows a mistake of the
    # measurement.
    good = bound is None or -bound <= growth <= bound
    limit = "no bound" if bound is None else f"bound {100 * bound:.1f} %"
    print(f"{'ok  ' if good else 'FAIL'} {what}: perplexity {np.exp(nll):.4f}, "
          f"{100 * growth:+.3f} % ({limit})", flush=True)
    return good


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("--windows", type=int, default=64)
    p.add_argument("--all", action="store_true")
    args, options = p.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        stories_to_hf.convert(MODEL, model)
        windows = read_windows(model, args.windows)
        nll_f32 = mean_nll(model, windows, "f32", [])
        print(f"f32: perplexity {np.exp(nll_f32):.4f} of {args.windows * (WINDOW_TOKENS - 1)} "
              f"tokens", flush=True)
        good = True
        for kind, group in [*BOUNDS, *(UNBOUND if args.all else [])]:
            nll = mean_nll(model, windows, "f32", ["--quantization", kind, "--quantization-group",
                                                   str(group), *options])
            what = f"{kind} group {group:3}"
            good = check(what, BOUNDS.get((kind, group)), nll, nll_f32) and good
        for kv in [*KV_BOUNDS, *(KV_UNBOUND if args.all else [])]:
            nll = mean_nll(model, windows, kv, options)
            good = check(f"KV in {kv}", KV_BOUNDS.get(kv), nll, nll_f32) and good
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
