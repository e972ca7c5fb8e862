#!/usr/bin/env python3
"""Logits equal those of Hugging Face transformers, for every case in tests/golden.

The test needs neither NumPy nor ../shared: make_hf_golden.py wrote models and logits, which are
in the repository. A folder with adapter_config.json is an adapter of another case's model, and
make_lora_golden.py wrote its logits with the PEFT library.
Each case runs on the best CPU kernels of this machine, the portable ones and the reference
kernels, weights and KV in f32, the prompt in chunks of 64 and of 7. With --emulated-gpu it runs on
the emulated GPU instead.
"""
from __future__ import annotations

import array
import json
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "tests" / "tools"))
import tarn_test  # noqa: E402

# Relative to the largest |logit| of the row. f32 arithmetic measures about 1e-6 here.
TOLERANCE = 1e-4
VOCAB = 64
RUNS = [("--device", "cpu"), ("--device", "cpu", "--chunk", "7"),
        ("--device", "cpu", "--cpu-variant", "portable"), ("--device", "ref")]


def largest_error(ours: array.array, golden: array.array) -> float:
    worst = 0.0
    for begin in range(0, len(golden), VOCAB):
        row = golden[begin:begin + VOCAB]
        scale = max(abs(x) for x in row)
        difference = max(abs(a - b) for a, b in zip(ours[begin:begin + VOCAB], row))
        # not (a <= b): a NaN must not pass
        worst = difference / scale if not difference / scale <= worst else worst
    return worst


def check(case: Path, runs: list[tuple[str, ...]]) -> bool:
    config, model, adapter = case / "adapter_config.json", case, ()
    if config.exists():
        model = case.parent / json.loads(config.read_text())["base_model_name_or_path"]
        adapter = ("--adapter", str(case))
    ids = [int(word) for word in (model / "ids.txt").read_text().split()]
    golden = array.array("f")
    golden.frombytes((case / "logits.f32").read_bytes())
    good = True
    for options in runs:
        ours = tarn_test.run_logits(model, ids, "--dtype", "f32", "--kv-dtype", "f32", *adapter,
                                   *options)
        if len(ours) != len(golden):
            print(f"FAIL {case.name} {options}: {len(ours)} logits, expected {len(golden)}")
            good = False
            continue
        error = largest_error(ours, golden)
        verdict = "ok  " if error <= TOLERANCE else "FAIL"
        good = good and error <= TOLERANCE
        print(f"{verdict} {case.name:18} {' '.join(options):35} {error:.2e}")
    return good


def main() -> None:
    cases = sorted(p.parent for p in (REPO / "tests" / "golden").glob("*/logits.f32"))
    if not cases:
        raise SystemExit("no case in tests/golden")
    runs = [("--device", "cuda")] if "--emulated-gpu" in sys.argv else RUNS
    results = [check(case, runs) for case in cases]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
