#!/usr/bin/env python3
"""The cost of quantization: the perplexity of a real model on real text, compared with f32.

stories260K reads windows of War and Peace, spread over the whole book; the mean negative
log-likelihood of the tokens gives a perplexity for each type of weights and of KV. The perplexity
must not grow by more than BOUNDS and KV_BOUNDS say. All runs see the same windows, so that few are
enough: the differences between windows cancel.

    test_perplexity.py [--windows N] [--all] [tarn-logits options]
    test_perplexity.py --model DIR [--text FILE] [--from SHARE] [--tokens N] [--windows N]

--all also measures the group sizes and types that have no bound, and GGUF files of the model that
run as they are stored. Options such as `--device ref` or `--cpu-variant avx2` go to every run but
that of f32.

--model measures another model, without bounds: windows of --tokens tokens from the text behind
--from, such as 0.9 for one of train_model.py, which never sees the last tenth.
"""
from __future__ import annotations

import argparse
import json
import shutil
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
import make_gguf  # noqa: E402
import numpy_gguf  # noqa: E402
import stories_to_hf  # noqa: E402

WINDOW_TOKENS = 512    # the context of stories260K
CHARS_PER_TOKEN = 4    # more than enough text for them with small vocabularies
CHARS_PER_TOKEN_MAX = 8  # and with those of other models
# Growth of the perplexity, as a share. int8 is near enough to f32 for its sign to be chance. fp8
# grows by 2.1 % also where f32 kernels multiply its numbers: that is the cost of this model.
BOUNDS = {("int8", 32): 0.003, ("int8", 128): 0.003, ("int4", 32): 0.04, ("fp8", 128): 0.03}
UNBOUND = [("int4", 128)]
KV_BOUNDS = {"int8": 0.003, "fp8": 0.005}
KV_UNBOUND = ["f16", "bf16"]
GGUF_TYPES = ["q8_0", "q6_k", "q5_0", "q4_1", "q4_0", "q4_k"]


def read_windows(model: Path, text: str, n: int, n_tokens: int,
                 chars_per_token: int) -> list[list[int]]:
    n_chars = n_tokens * chars_per_token
    step = (len(text) - n_chars) // n
    windows = []
    with tarn_test.server(model, "--served-model-name", "model") as url:
        for i in range(n):
            piece = text[i * step:i * step + n_chars]
            ids = tarn_test.post(url + "/tokenize", {"prompt": piece})["tokens"]
            windows.append(ids[:n_tokens])
    if any(len(ids) < n_tokens for ids in windows):
        raise SystemExit(f"a window of {n_chars} characters has too few tokens")
    return windows


def likelihoods(model: Path, ids: list[int], kv: str, options: list[str]) -> np.ndarray:
    """Negative log-likelihood of each token but the first."""
    dtype = [] if "--dtype" in options else ["--dtype", "f32"]
    raw = tarn_test.run_logits(model, ids, *dtype, "--kv-dtype", kv, *options)
    logits = np.frombuffer(raw, dtype=np.float32).reshape(len(ids), -1).astype(np.float64)
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


def measure_gguf(model: Path, windows: list[list[int]], nll_f32: float, options: list[str],
                 folder: Path) -> None:
    """Files without tokenizer: the windows are ids already. The embedding has 8 bits, as
    llama.cpp gives it in a tied model."""
    width = json.loads((model / "config.json").read_text())["hidden_size"]
    bare = folder / "bare"
    bare.mkdir()
    for file in ("config.json", "model.safetensors"):
        shutil.copy(model / file, bare)
    for kind in GGUF_TYPES:
        if width % numpy_gguf.KINDS[kind].elements:
            continue
        file = make_gguf.make(bare, folder / f"{kind}.gguf", kind=kind, embedding="q8_0")
        nll = mean_nll(file, windows, "f32", ["--quantization", "auto", *options])
        check(f"{kind} as stored", None, nll, nll_f32)


def measure(model: Path, windows: list[list[int]], everything: bool, bounds: bool,
            options: list[str], folder: Path) -> bool:
    nll_f32 = mean_nll(model, windows, "f32", [])
    n_tokens = sum(len(ids) - 1 for ids in windows)
    print(f"f32: perplexity {np.exp(nll_f32):.4f} of {n_tokens} tokens", flush=True)
    good = True
    for kind, group in [*BOUNDS, *(UNBOUND if everything else [])]:
        nll = mean_nll(model, windows, "f32", ["--quantization", kind, "--quantization-group",
                                               str(group), *options])
        bound = BOUNDS.get((kind, group)) if bounds else None
        good = check(f"{kind} group {group:3}", bound, nll, nll_f32) and good
    if everything:
        nll = mean_nll(model, windows, "f32", ["--dtype", "bf16", *options])
        check("bf16", None, nll, nll_f32)
        measure_gguf(model, windows, nll_f32, options, folder)
    for kv in [*KV_BOUNDS, *(KV_UNBOUND if everything else [])]:
        nll = mean_nll(model, windows, kv, options)
        good = check(f"KV in {kv}", KV_BOUNDS.get(kv) if bounds else None, nll, nll_f32) and good
    return good


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("--windows", type=int, default=64)
    p.add_argument("--all", action="store_true")
    p.add_argument("--model", type=Path)
    p.add_argument("--text", type=Path, default=next(BOOK.glob("*.txt")))
    p.add_argument("--from", type=float, default=0, dest="begin", metavar="SHARE")
    p.add_argument("--tokens", type=int, default=WINDOW_TOKENS)
    args, options = p.parse_known_args()
    text = args.text.read_text(encoding="utf-8", errors="replace")
    text = text[int(len(text) * args.begin):]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = args.model or folder / "model"
        if not args.model:
            stories_to_hf.convert(MODEL, model)
        windows = read_windows(model, text, args.windows, args.tokens,
                               CHARS_PER_TOKEN_MAX if args.model else CHARS_PER_TOKEN)
        good = measure(model, windows, args.all or bool(args.model), not args.model, options,
                       folder)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
