#!/usr/bin/env python3
"""tests/gpu/predict.py counts what the kernels do: launches, blocks and loaded bytes of whole steps
equal those that the emulated GPU traces, and PERFORMANCE.md has the program's tables."""
from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from http_helpers import REPO, run_tests
import tarn_test

sys.path.insert(0, str(REPO / "tests" / "gpu"))
import predict  # noqa: E402
import report  # noqa: E402

# K of qkv and gate_up is padded, that of o is not; heads share KV heads. With 20 rows of integers
# gate_up fills the emulated GPU with tiles, and the other products are split over K.
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 96,
          "intermediate_size": 260, "num_hidden_layers": 2, "num_attention_heads": 8,
          "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 300,
          "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
          "tie_word_embeddings": False, "torch_dtype": "bfloat16"}
# Its attention of at least 128 queries can run on wgmma.
WIDE_HEADS = {"num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 64}
# The emulated GPU has few multiprocessors. The third case splits groups of segments.
DEVICE = predict.Device(n_sms=4)
# The fifth one's bucket of 24 rows is cut to the most that a step has; the second has padding. In
# the last one groups of four sequences read two segments, and no one shares the third.
STEPS = [(1, 1, 40), (3, 1, 300), (1, 5, 2100), (1, 70, 0), (20, 1, 3), (9, 1, 600, 550)]
# One block of 128 queries and more, several groups, too few queries.
WIDE_STEPS = [(1, 70, 0), (1, 40, 2100), (1, 31, 100)]
# Two warps share a tile of such heads.
PAIR_HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 256}
PAIR_STEPS = [(4, 1, 100), (1, 70, 0), (1, 3, 2100)]
MOST_ROWS = 20


def step_of(n: int, rows: int, context: int, shared: int = 0, **mode: Any) -> predict.Step:
    return predict.Step(n, rows, context, shared=shared, **mode)


def trace(folder: Path, steps: list[tuple[int, ...]], *options: str,
          wgmma: bool = False) -> list[list[list[str]]]:
    """The traced lines of each step; a step has an embedding and a gather, which is one too."""
    file = folder / "trace"
    argv = [str(tarn_test.program("tarn-bench-emulated")), "--model", str(folder), "--load-format",
            "dummy", "--device", "cuda", "--no-limits", "--repetitions", "1",
            "--max-num-batched-tokens", "128", "--kv-device-bytes", "32M", *options]
    for step in steps:
        argv += ["--case", predict.Case("", "", step_of(*step), None).bench]
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL,
                   env={**os.environ, "TARN_EMULATION_TRACE": str(file),
                        "TARN_EMULATION_WGMMA": str(int(wgmma))})
    found: list[list[list[str]]] = []
    n_embeds = 0
    for line in file.read_text().splitlines():
        fields = line.split("\t")
        if "embed_kernel" in fields[1]:
            if n_embeds % 2 == 0:
                found.append([])
            n_embeds += 1
        if n_embeds:
            found[-1].append(fields)
    return found


def counted(step: list[list[str]]) -> Counter:
    """(kernel, x, y, z, bytes by each kind of load) of a step's lines."""
    rows = []
    for kind, name, *fields in step:
        short = name.strip("()").split("<")[0]
        numbers = [int(f) for f in fields]
        rows.append((short, *numbers[:3], *(numbers[4:] if kind == "kernel" else (0, 0, 0))))
    return Counter(rows)


def expected(ops: list[predict.Op]) -> Counter:
    rows: Counter = Counter()
    for op in ops:
        for i, n in enumerate(op.launches):
            counts = op.counted if i == op.counted_launch else (0, 0, 0)
            rows[(n.kernel, n.x, n.y, n.z, *counts)] += op.times
    return rows


def check(folder: Path, weights: str, *options: str, wgmma: bool = False,
          steps: list[tuple[int, ...]] | None = None) -> None:
    steps = steps or STEPS
    model = predict.Model.load(folder).quantized(weights)
    mode = {"invariant": "--batch-invariant" in options, "eager": "--enforce-eager" in options,
            "most_rows": MOST_ROWS, "wgmma": wgmma}
    wanted = [expected(predict.step_ops(DEVICE, model, step_of(*s, **mode), samples=False))
              for s in steps]
    seen = [0] * len(steps)
    for step in trace(folder, steps, *options, wgmma=wgmma):
        got = counted(step)
        assert got in wanted, f"{weights}: a step that no case predicts: {sorted(got.items())}, " \
                              f"beside {[sorted((w - got).items()) for w in wanted]}"
        seen[wanted.index(got)] += 1
    assert all(seen), f"{weights}: no step has the counts of case {seen.index(0)}"


def with_model(weights: str, *options: str, wgmma: bool = False,
               steps: list[tuple[int, ...]] | None = None, **changes: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))
        check(folder, weights, *options, wgmma=wgmma, steps=steps)


def products_of_cublas_are_counted() -> None:
    with_model("bf16")


def invariant_products_are_counted() -> None:
    with_model("bf16", "--batch-invariant")


def int4_products_are_counted() -> None:
    with_model("int4", "--quantization", "int4")


def int8_products_are_counted() -> None:
    with_model("int8", "--quantization", "int8", "--enforce-eager")


def products_by_wgmma_are_counted() -> None:
    with_model("int4", "--quantization", "int4", wgmma=True)


def attention_by_wgmma_is_counted() -> None:
    with_model("bf16", wgmma=True, steps=WIDE_STEPS, **WIDE_HEADS)


def attention_of_heads_of_256_is_counted() -> None:
    with_model("bf16", steps=PAIR_STEPS, **PAIR_HEADS)


def fp8_products_are_counted() -> None:
    with_model("fp8", "--quantization", "fp8")


def the_page_has_the_tables_of_the_program() -> None:
    page = REPO / "kernels/cuda/PERFORMANCE.md"
    assert predict.with_part(page.read_text()) == page.read_text(), \
        f"run tests/gpu/predict.py --write {page}"


def bytes_under_way_are_those_of_the_kernel() -> None:
    """The ring is a constant of the kernel, whose slots are 8 KB with up to 8 rows, else 16; o and
    down of the 8 B model have 256 blocks."""
    text = (REPO / "kernels/cuda/gemm_narrow.cuh").read_text()
    for n_bytes, slot in zip(predict.RING_BYTES, (8, 16)):
        assert f"#define NARROW_RING_BYTES ({(n_bytes >> 10) + slot} << 10)" in text
    assert "SLOT_BYTES = 2 * MT * 16 * NARROW_THREADS;" in text
    assert "MT * NT == 1 ? 3 : 1;" in text  # blocks that a multiprocessor has room for
    device, o = predict.Device(), ("int4", 32)
    op = predict.own_product(device, o, 4096, 4096, 1)
    assert op.under_way == 256 / 132 * (40 << 10) and op.ahead == 4096 * 4096 / 2
    wide = predict.own_product(device, o, 2 * 14336, 4096, 1)
    assert wide.under_way == 120 << 10 and wide.ahead == 132 * (120 << 10)


def floors_are_bytes_over_the_copy_rate() -> None:
    """The 8 B model's decode with one sequence, by hand: weights, and KV of 1,025 tokens."""
    weights = 2 * (32 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336) + 128256 * 4096)
    kv = 2 * 32 * 8 * 128 * 2 * 1025
    case = predict.CASES[0]
    got = predict.floor_seconds(predict.Device(), case.ops(predict.Device(), predict.model_8b()))
    assert abs(got - (weights + kv) / 3.0e12) < 1e-12, got


def the_row_of_products_is_their_sum() -> None:
    """Of a step of 64 rows: four products of each layer, and the output layer."""
    case = predict.CASES[-1]
    with tempfile.TemporaryDirectory() as name:
        made = report.Report(Path(name) / "out", Path(name) / "work")
        shapes = ["qkv int4 g32 N 1 K 1 T 64", "o int4 g32 N 1 K 1 T 64",
                  "gate_up int4 g32 N 1 K 1 T 64", "gate_up int4 g32 N 1 K 1 T 16",
                  "down int4 g32 N 1 K 1 T 64"]
        lines = ["op,shape,us", *(f"gemm,{s},{10 ** i}" for i, s in enumerate(shapes))]
        (made.work / "decisive.csv").write_text("\n".join(lines))
        assert made.products_seconds(case) is None
        (made.work / "decisive.csv").write_text("\n".join([*lines, "gemm,output int8 N 1 T 64,5"]))
        got = made.products_seconds(case)
        assert got and abs(got - (32 * (1 + 10 + 100 + 10000) + 5) * 1e-6) < 1e-12, got


if __name__ == "__main__":
    sys.exit(run_tests([the_row_of_products_is_their_sum,
                        products_of_cublas_are_counted, invariant_products_are_counted,
                        int4_products_are_counted, int8_products_are_counted,
                        fp8_products_are_counted, products_by_wgmma_are_counted,
                        attention_by_wgmma_is_counted, attention_of_heads_of_256_is_counted,
                        bytes_under_way_are_those_of_the_kernel,
                        the_page_has_the_tables_of_the_program,
                        floors_are_bytes_over_the_copy_rate], 2))
