#!/usr/bin/env python3
"""Floor and predicted time of a step of a Llama model on a GPU: arithmetic, op by op.

    predict.py [--model DIR] [--weights bf16|fp8|int8[:GROUP]|int4[:GROUP]] [--sequences N]
               [--rows N] [--context N] [--shared N] [--invariant] [--eager] [--no-wgmma]
               [device options]
    predict.py --table                      every row of the table of floors and predictions
    predict.py --verify                     what requests that ask for equal bits would cost
    predict.py --write PAGE, --check PAGE   the same, between the marks of a page

A step computes --rows new tokens of each of --sequences sequences behind --context cached ones, of
which the first --shared are the same KV for all sequences.
For each op the program counts launches, blocks, bytes and operations as kernels/cuda launches them
(tests/integration/test_gpu_predict.py compares these counts with the emulation).

    floor      the larger of bytes / copy rate and operations / matrix rate, where bytes are those
               that any implementation moves: weights, KV and logits once
    predicted  the sum over ops of launches x gap + the largest of bytes / (copy rate x share),
               bytes from L2 / L2 rate, operations / (matrix rate x share). A product of few rows
               loads as many bytes less as come in the gap of the kernel in front, and no faster
               than its bytes under way / the latency of memory.

The copy rate and the matrix rate were measured on an H100. Gaps, shares, the L2 rate and the
latency are guesses, each with its lower and its upper end; they are in GUESSES below, and nowhere
else.
"""
from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
BLOCK, SEGMENT, GROUP_SEGMENTS, TILE, QUERIES = 32, 256, 8, 64, 64
MMA_ROWS = 16
KV_BYTES = 2  # of an element
WIDE_QUERIES, WIDE_HEADS = 128, (64, 128)  # of a block of attn_wgmma_kernel; its head sizes
PAIR_HEADS = 128  # two warps share a tile of larger heads
NARROW_ROWS_MAX = 64
WGMMA_ROWS, PIECE_K = 128, 128  # a tile's rows; elements of K of a piece of activations

# (lower, upper) end of what is not measured: shares of a rate, microseconds, bytes per second.
GUESSES: dict[str, tuple[float, float]] = {
    "gap between two kernels of a stream, us": (2.0, 3.0),
    "gap between two kernels of a graph, us": (1.2, 1.8),
    "gap before a kernel that begins early, us": (0.6, 1.2),
    "bytes of a bf16 product with few rows": (0.70, 0.85),
    "bytes of an fp8 product with few rows": (0.70, 0.85),
    "bytes of an int8 product with few rows": (0.70, 0.85),
    "bytes of an int4 product with few rows": (0.65, 0.80),
    "bytes of tiles and wgmma, quantized": (0.60, 0.75),
    "latency of memory under load, us": (1.0, 0.7),
    "bytes of decode attention": (0.70, 0.85),
    "bytes of other ops": (0.50, 0.80),
    "operations of cuBLASLt": (0.80, 0.95),
    "operations of mma.sync tiles": (0.40, 0.55),
    "operations of wgmma, groups of 128": (0.60, 0.80),
    "operations of wgmma, groups of 32": (0.45, 0.60),
    "operations of prefill attention": (0.25, 0.35),
    "operations of prefill attention by wgmma": (0.40, 0.60),
    "L2 rate, TB/s": (4.0, 5.5),
}
STREAM, GRAPH = (f"gap between two kernels of a {where}, us" for where in ("stream", "graph"))

EARLY, LATENCY = "gap before a kernel that begins early, us", "latency of memory under load, us"
TILES = "bytes of tiles and wgmma, quantized"
# Under way in a block of narrow_kernel: quantized weights, all slots of the ring but the one in use
# (5 of 6 with up to 8 rows, 2 of 3 with more); 16-bit floats.
RING_BYTES, PART_BYTES = (40 << 10, 32 << 10), 32 << 10


def up(a: int, b: int) -> int:
    return -(-a // b)


@dataclass(frozen=True)
class Device:
    """Rates in bytes and operations per second."""
    copy_rate: float = 3.0e12
    matrix_rate: float = 798e12
    n_sms: int = 132
    n_partial_sums: int = (32 << 20) // 4
    n_partial_segments: int = (256 << 20) // (32 * 130 * 4)


@dataclass(frozen=True)
class Model:
    """group 0: floats of 16 bits. Quantized models have an output layer of int8."""
    dim: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    layers: int
    vocab: int
    weights: str = "bf16"
    group: int = 0

    @staticmethod
    def load(folder: Path) -> "Model":
        c = json.loads((folder / "config.json").read_text())
        return Model(c["hidden_size"], c["intermediate_size"], c["num_attention_heads"],
                     c["num_key_value_heads"],
                     c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"],
                     c["num_hidden_layers"], c["vocab_size"])

    def quantized(self, words: str) -> "Model":
        """words: "bf16", "fp8", "int4:128"; groups as tarn-server chooses them."""
        name, _, group = words.partition(":")
        usual = {"bf16": 0, "fp8": 128, "int8": 128, "int4": 32}
        if name not in usual or (name == "fp8" and group):
            raise SystemExit(f"--weights: {words} is none of bf16, fp8, int8[:GROUP], int4[:GROUP]")
        return replace(self, weights=name, group=int(group) if group else usual[name])

    @property
    def n_shared(self) -> int:
        return self.heads // self.kv_heads

    @property
    def output(self) -> tuple[str, int]:
        return ("int8" if self.group else "bf16", 128 if self.group else 0)


def row_elements(k: int) -> int:
    """Elements of a padded row."""
    return up(k, 128) * 128


def weight_bytes(weights: tuple[str, int], n: int, k: int) -> float:
    name, group = weights
    if group == 0:
        return 2 * n * row_elements(k)
    scale = 4 if name == "fp8" else 2
    return n * row_elements(k) * ((0.5 if name == "int4" else 1) + scale / group)


@dataclass(frozen=True)
class Step:
    sequences: int
    rows: int
    context: int
    invariant: bool = False  # Tarn's own products instead of cuBLASLt's
    eager: bool = False  # --enforce-eager
    wgmma: bool = False  # Hopper's own instructions, where kernels for them exist
    most_rows: int = 512  # of a bucket
    shared: int = 0  # first tokens of the context whose KV all sequences have in common

    @property
    def replays(self) -> bool:
        """Whether the step is one that a GPU replays."""
        return self.rows == 1 and not self.eager and self.sequences <= self.most_rows

    @property
    def padded(self) -> int:
        """Sequences with those that fill the bucket (engine/run/step_graphs.c)."""
        n = self.sequences
        unit = 1 if n <= 2 else 4 if n <= 4 else 8 if n <= 64 else 32
        return min(up(n, unit) * unit, self.most_rows) if self.replays else n

    @property
    def padded_segments(self) -> int:
        n, eighth = self.sequences * self.n_segments, 8
        while n // eighth >= 16:
            eighth *= 2
        return up(n, eighth) * eighth if self.replays else n

    @property
    def n_rows(self) -> int:
        return self.padded * self.rows

    @property
    def length(self) -> int:
        return self.context + self.rows

    @property
    def n_segments(self) -> int:
        return up(self.length, SEGMENT)

    @property
    def n_shared_segments(self) -> int:
        """Of a decode step: those that groups of sequences read once."""
        return self.shared // SEGMENT if self.rows == 1 else 0

    @property
    def kv_tokens(self) -> int:
        """Tokens whose KV lies in memory."""
        common = self.shared // BLOCK * BLOCK
        return common + self.sequences * (self.length - common)


@dataclass(frozen=True)
class Launch:
    kernel: str
    x: int
    y: int = 1
    z: int = 1

    @property
    def blocks(self) -> int:
        return self.x * self.y * self.z


@dataclass
class Op:
    """One op, `times` times in a step. Bytes are of device memory but for l2_bytes. `counted`
    are bytes that the emulation counts, of launches[counted_launch]: by load_weight16,
    load_once16, and cp_async16 or bulk_copy."""
    name: str
    times: int
    launches: list[Launch]
    bytes: float
    byte_share: str = "bytes of other ops"
    l2_bytes: float = 0
    operations: float = 0
    op_share: str = "operations of mma.sync tiles"
    busy: float = 1.0  # share of the device that has blocks
    ahead: float = 0  # bytes that may come before the kernel in front has ended
    under_way: float = 0  # bytes that a multiprocessor waits for at once; 0: not counted
    is_early: bool = False  # the kernel in front lets this one begin
    counted: tuple[int, int, int] = (0, 0, 0)
    counted_launch: int = 0
    floor_bytes: float = 0  # that any implementation moves
    floor_operations: float = field(default=0)

    def seconds(self, device: Device, end: int, gap_name: str = STREAM) -> float:
        """With all guesses at one end: 0 the slow one, 1 the fast one."""
        early = 1e-6 * GUESSES[EARLY][1 - end]
        gap = sum(early if self.is_early else 1e-6 * GUESSES[gap_name][1 - end]
                  for n in self.launches)
        rate = device.copy_rate * GUESSES[self.byte_share][end] * self.busy
        if self.under_way:
            rate = min(rate, 1e6 * device.n_sms * self.under_way / GUESSES[LATENCY][end])
        by_bytes = (self.bytes - min(self.ahead, early * rate)) / rate
        by_l2 = self.l2_bytes / (GUESSES["L2 rate, TB/s"][end] * 1e12 * self.busy)
        by_ops = self.operations / (device.matrix_rate * GUESSES[self.op_share][end] * self.busy)
        return self.times * (gap + max(by_bytes, by_l2, by_ops))


# --- products ---

def range_elements(kp: int) -> int:
    """Elements of K in one of at most eight ranges (gemm_split)."""
    return up(kp // 128, 8) * 128


def narrow_tile(n_rows: int) -> tuple[int, int]:
    """Outputs and rows of a block of the kernels for few rows."""
    return (16, 8) if n_rows <= 8 else (32, 16) if n_rows <= 16 else (32, 32)


def under_way(device: Device, group: int, t: int, blocks: int) -> float:
    """Bytes of weights that the blocks of narrow_kernel on a multiprocessor have under way."""
    resident = (3 if t <= 8 else 1) if group else 2 if t <= 16 else 1
    return min(resident, blocks / device.n_sms) * (RING_BYTES[t > 8] if group else PART_BYTES)


def own_product(device: Device, weights: tuple[str, int], n: int, k: int, t: int) -> Op:
    name, group = weights
    kp, each = row_elements(k), 2 if group == 0 else 0.5 if name == "int4" else 1
    share = f"bytes of {'a' if group == 0 else 'an'} {name} product with few rows"
    outputs, rows = 128, 64 if group else 128
    fills = up(t, rows) * up(n, outputs) >= device.n_sms
    n_ranges = up(kp, range_elements(kp))
    splits = group and not fills and n_ranges * t * n <= device.n_partial_sums
    if t <= 16 or (t <= NARROW_ROWS_MAX and group == 0):
        outputs, rows = narrow_tile(t)
        x, y = up(t, rows), up(n, outputs)
        read = int(y * outputs * kp * each * x)
        on_each = under_way(device, group, t, x * y)
        return Op("", 1, [Launch("narrow_kernel", x, y)],
                  weight_bytes(weights, n, k) + 4 * t * n, share, is_early=True,
                  ahead=min(device.n_sms * on_each, n * kp * each), under_way=on_each,
                  l2_bytes=2 * y * t * kp + (x - 1) * n * kp * each, operations=2 * t * n * kp,
                  counted=(read, 0, 0))
    splits = splits and t <= NARROW_ROWS_MAX
    if not fills and t > NARROW_ROWS_MAX:
        outputs, rows = 64, 64
    x, y = up(t, rows), up(n, outputs)
    launches = [Launch("tile_kernel", x, y, n_ranges if splits else 1)]
    sums = 0
    if splits:
        launches.append(Launch("fold_kernel", up(n, 256), t))
        sums = 2 * 4 * n_ranges * t * n  # written and read; the second-level cache keeps them
    return Op("", 1, launches, weight_bytes(weights, n, k) + 2 * t * kp + 4 * t * n,
              TILES if group else share, l2_bytes=x * n * kp * each + 2 * y * t * kp + sums,
              operations=2 * t * n * kp,
              counted=(0, 0, int(x * n * kp * each) + 2 * y * t * kp))


def wgmma_product(weights: tuple[str, int], n: int, k: int, t: int) -> Op:
    """A tile's activations come once for each 128 outputs, in pieces that a launch before made."""
    name, group = weights
    kp, each = row_elements(k), 0.5 if name == "int4" else 1
    x, y = up(t, WGMMA_ROWS), up(n, WGMMA_ROWS)
    arranged = x * WGMMA_ROWS * kp * 2
    read = int(x * y * WGMMA_ROWS * kp * each)
    return Op("", 1, [Launch("arrange_kernel", kp // PIECE_K, x), Launch("wgmma_kernel", x, y)],
              weight_bytes(weights, n, k) + 4 * t * n, TILES,
              l2_bytes=read + y * arranged + 2 * t * kp + arranged, operations=2 * t * n * kp,
              op_share=f"operations of wgmma, groups of {group}",
              counted=(read, 0, y * arranged), counted_launch=1)


def takes_wgmma(device: Device, step: Step, weights: tuple[str, int], layers: tuple[str, int],
                n: int, t: int) -> bool:
    tiles = up(t, WGMMA_ROWS) * up(n, WGMMA_ROWS)
    return bool(step.wgmma and not step.invariant and weights[1] and weights == layers
                and t > NARROW_ROWS_MAX and 2 * tiles >= device.n_sms)


def product(device: Device, step: Step, name: str, times: int, weights: tuple[str, int], n: int,
            k: int, t: int, adds: bool = False, layers: tuple[str, int] = ("", 0)) -> Op:
    """layers: the weights of most products, which alone run on wgmma."""
    if takes_wgmma(device, step, weights, layers, n, t):
        op = wgmma_product(weights, n, k, t)
    elif weights[1] or step.invariant or t == 1:
        op = own_product(device, weights, n, k, t)
    else:
        op = Op("", 1, [Launch("cublasLtMatmul", n, t, row_elements(k))],
                weight_bytes(weights, n, k) + 2 * t * row_elements(k) + 4 * t * n,
                "bytes of a bf16 product with few rows", operations=2 * t * n * row_elements(k),
                op_share="operations of cuBLASLt")
    op.name, op.times = name, times
    op.bytes += 4 * t * n if adds else 0
    op.floor_bytes, op.floor_operations = weight_bytes(weights, n, k), 2 * t * n * k
    return op


# --- attention ---

def kv_read(m: Model, n_tokens: int) -> int:
    """Bytes of K and V of one KV head that the kernels load for the first n_tokens of a segment:
    whole words of 4 tokens of K and of 2 tokens of V."""
    return sum((up(n, 4) * 4 + up(n, 2) * 2) * m.head_dim * KV_BYTES
               for n in (min(BLOCK, n_tokens - t) for t in range(0, n_tokens, BLOCK)))


def is_wide(m: Model, step: Step) -> bool:
    """Whether attn_wgmma_kernel takes the sequences."""
    return bool(step.wgmma and not step.invariant and m.head_dim in WIDE_HEADS
                and step.rows * m.n_shared >= WIDE_QUERIES)


def resident(m: Model) -> int:
    """Blocks of a multiprocessor: of 4 warps, or of 8."""
    return 2 if m.head_dim <= PAIR_HEADS else 1


def walked(m: Model, step: Step, queries: int) -> int:
    """Bytes of K and V of one KV head that the blocks of a sequence copy."""
    total, n_queries = 0, step.rows * m.n_shared
    for first in range(0, n_queries, queries):
        last = step.context + (min(first + queries, n_queries) - 1) // m.n_shared
        n_tiles = last // TILE + 1
        total += kv_read(m, min(n_tiles * TILE, step.length))
    return total


def n_groups(m: Model, step: Step) -> int:
    """Groups of sequences that read a shared segment once (engine/run/segment_work.c)."""
    return up(step.sequences, max(MMA_ROWS // m.n_shared, 1))


def decode_attention(device: Device, m: Model, step: Step) -> Op:
    n_segments, n_parts = step.sequences * step.n_segments, up(m.n_shared, MMA_ROWS)
    grid = Launch("attn_decode_kernel", step.padded_segments, m.kv_heads * n_parts)
    width = m.heads * m.head_dim
    launches = [grid, Launch("attn_combine_kernel", step.padded * up(width, 128))]
    is_used, n_heads = step.rows == 1, m.kv_heads * n_parts
    shared = n_heads * kv_read(m, step.n_shared_segments * SEGMENT)
    own = step.sequences * (n_heads * kv_read(m, step.length) - shared) if is_used else 0
    read = own + n_groups(m, step) * shared
    partials = 8 * (m.head_dim + 2) * m.heads * n_segments if is_used else 0
    # Segments with blocks of their own.
    n_read = n_segments - (step.sequences - n_groups(m, step)) * step.n_shared_segments
    return Op("attention, decode", m.layers, launches,
              own + shared + partials + 6 * step.n_rows * width, "bytes of decode attention",
              l2_bytes=read - own - shared,
              operations=4 * m.heads * m.head_dim * n_segments * SEGMENT,
              busy=min(1.0, n_read * grid.y / (resident(m) * device.n_sms)),
              counted=(0, read, 0))


def prefill_groups(device: Device, m: Model, step: Step, queries: int) -> int:
    """Groups of segments that are blocks of their own; 0: a block walks all of them."""
    n_groups = up(step.n_segments, GROUP_SEGMENTS)
    n_full = step.n_rows * m.n_shared // queries + 1
    fits = step.n_rows * n_groups <= device.n_partial_segments
    return n_groups if n_groups > 1 and n_full * m.kv_heads < device.n_sms and fits else 0


def prefill_attention(device: Device, m: Model, step: Step) -> Op:
    wide = is_wide(m, step)
    queries = WIDE_QUERIES if wide else QUERIES
    groups, width = prefill_groups(device, m, step, queries), m.heads * m.head_dim

    def grid_of(kernel: str, queries: int) -> Launch:
        return Launch(kernel, step.n_rows * m.n_shared // queries + step.sequences, m.kv_heads,
                      max(groups, 1))

    launches = []
    if not wide or step.sequences > 1:  # beside wide ones its blocks end at once
        launches.append(grid_of("attn_prefill_kernel", QUERIES))
    if wide:
        launches.append(grid_of("attn_wgmma_kernel", queries))
    used = len(launches) - 1
    grid = launches[used]
    if groups:
        launches.append(Launch("attn_groups_kernel", step.n_rows * up(width, 128)))
    copied = step.sequences * m.kv_heads * walked(m, step, queries)
    once = step.sequences * m.kv_heads * kv_read(m, step.length)
    partials = 8 * (m.head_dim + 2) * m.heads * step.n_rows * groups
    seen = step.rows * (step.context + (step.rows + 1) / 2)
    return Op("attention, prefill", m.layers, launches, once + partials + 6 * step.n_rows * width,
              "bytes of decode attention", l2_bytes=copied,
              operations=4 * width * step.sequences * seen,
              op_share="operations of prefill attention" + (" by wgmma" if wide else ""),
              busy=min(1.0, grid.blocks / ((1 if wide else resident(m)) * device.n_sms)),
              counted=(0, copied, 0) if wide else (0, 0, copied), counted_launch=used)


def attention(device: Device, m: Model, step: Step) -> list[Op]:
    ops = []
    if step.sequences > 1 or step.rows == 1:
        ops.append(decode_attention(device, m, step))
    if step.rows > 1:
        ops.append(prefill_attention(device, m, step))
    seen = step.rows * (step.context + (step.rows + 1) / 2)
    ops[-1].floor_bytes = step.kv_tokens * m.kv_heads * m.head_dim * 2 * KV_BYTES
    ops[-1].floor_operations = 4 * m.heads * m.head_dim * step.sequences * seen
    return ops


# --- the step ---

def rope(m: Model, t: int) -> Op:
    n_q = up(t * up(m.heads, 4) * up(m.head_dim // 2, 4), 256)
    n_tiles = up(t, BLOCK) * m.kv_heads
    blocks = n_q + n_tiles * (up(up(m.head_dim, 2), 32) + up(m.head_dim, 64))
    return Op("rope_kv", m.layers, [Launch("rope_kv_kernel", blocks)],
              t * (8 * m.heads + (8 + 2 * KV_BYTES) * m.kv_heads) * m.head_dim)


def rows_op(name: str, kernel: str, times: int, t: int, width: int, bytes_each: float) -> Op:
    return Op(name, times, [Launch(kernel, t, up(width, 1024))], bytes_each * t * width)


def step_ops(device: Device, m: Model, step: Step, samples: bool = True) -> list[Op]:
    t, r, width = step.n_rows, step.padded, m.heads * m.head_dim
    weights, layers = (m.weights, m.group), m.layers
    table = 2 if m.group == 0 else 1

    def of_layer(name: str, n: int, k: int, adds: bool = False) -> Op:
        return product(device, step, name, layers, weights, n, k, t, adds, weights)

    ops = [rows_op("embed", "embed_kernel", 1, t, m.dim, 4 + table),
           Op("norms", 2 * layers, [Launch("rmsnorm_kernel", t)], 6 * t * m.dim),
           of_layer("qkv", width + 2 * m.kv_heads * m.head_dim, m.dim), rope(m, t),
           *attention(device, m, step),
           of_layer("o", m.dim, width, True),
           of_layer("gate_up", 2 * m.ffn, m.dim),
           rows_op("silu_mul", "silu_mul_kernel", layers, t, row_elements(m.ffn), 10),
           of_layer("down", m.dim, m.ffn, True),
           rows_op("gather", "embed_kernel", 1, r, m.dim, 8),
           Op("last norm", 1, [Launch("rmsnorm_kernel", r)], 6 * r * m.dim),
           product(device, step, "output", 1, m.output, m.vocab, m.dim, r, layers=weights)]
    begin_early = any(o.name == "qkv" and o.is_early for o in ops)
    for op in ops:
        op.is_early |= begin_early and op.name in ("norms", "rope_kv", "silu_mul")
    if samples:
        r = step.sequences
        ops.append(Op("sample", 1, [Launch("sample_kernel", r)], 4 * r * m.vocab,
                      busy=min(1.0, r / device.n_sms)))
    return ops


def gap_of(step: Step) -> str:
    return GRAPH if step.replays else STREAM


def floor_seconds(device: Device, ops: list[Op]) -> float:
    return max(sum(o.times * o.floor_bytes for o in ops) / device.copy_rate,
               sum(o.times * o.floor_operations for o in ops) / device.matrix_rate)


def predicted_seconds(device: Device, ops: list[Op], gap: str) -> tuple[float, float]:
    """(fast, slow)."""
    return (sum(o.seconds(device, 1, gap) for o in ops),
            sum(o.seconds(device, 0, gap) for o in ops))


# --- the table ---

@dataclass(frozen=True)
class Case:
    """A row of the table. `bench` and `weights` name tarn-bench's case; products: only the
    products of the step."""
    name: str
    weights: str
    step: Step
    reach_ms: float | None
    products: bool = False

    @property
    def bench(self) -> str:
        s = self.step
        if s.rows == 1:
            return f"decode:{s.sequences}:{s.context}" + (f"@{s.shared}" if s.shared else "")
        return f"prefill:{s.rows}" + (f"@{s.context}" if s.context else "")

    @property
    def gap(self) -> str:
        """The products of a step are timed in a stream."""
        return STREAM if self.products else gap_of(self.step)

    def ops(self, device: Device, model: Model) -> list[Op]:
        ops = step_ops(device, model.quantized(self.weights), self.step)
        names = ("qkv", "o", "gate_up", "down", "output")
        return [o for o in ops if o.name in names] if self.products else ops


CASES = [
    Case("decode 1 at 1k, bf16", "bf16", Step(1, 1, 1024), 5.7),
    Case("decode 64 at 4k, bf16", "bf16", Step(64, 1, 4096), 19),
    Case("decode 16 behind one 4k prefix, bf16", "bf16", Step(16, 1, 4096, shared=4096), None),
    Case("decode 64 behind one 4k prefix, bf16", "bf16", Step(64, 1, 4096, shared=4096), None),
    Case("prefill 2k, bf16", "bf16", Step(1, 2048, 0, wgmma=True), 48),
    Case("64 new behind 16k cached, bf16", "bf16", Step(1, 64, 16384, wgmma=True), 8.5),
    Case("decode 1 at 1k, int4", "int4", Step(1, 1, 1024), 2.4),
    Case("decode 1 at 1k, int8", "int8", Step(1, 1, 1024), 3.4),
    Case("decode 1 at 1k, fp8", "fp8", Step(1, 1, 1024), 3.4),
    Case("prefill 2k, int4", "int4", Step(1, 2048, 0, wgmma=True), None),
    Case("prefill 2k, int8", "int8", Step(1, 2048, 0, wgmma=True), None),
    Case("products of 64 rows, int4", "int4", Step(64, 1, 0), 2.2, products=True),
]


def model_8b() -> Model:
    return Model.load(HERE / "model-8b")


def in_ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f}"


def cases_table(device: Device, model: Model) -> list[str]:
    lines = ["| step of the 8 B model | launches | floor ms | predicted ms | to reach |",
             "|---|---|---|---|---|"]
    for c in CASES:
        ops = c.ops(device, model)
        fast, slow = predicted_seconds(device, ops, c.gap)
        n = sum(o.times * len(o.launches) for o in ops)
        lines.append(f"| {c.name} | {n} | {in_ms(floor_seconds(device, ops))} | {in_ms(fast)} to "
                     f"{in_ms(slow)} | {format(c.reach_ms, 'g') if c.reach_ms else '-'} |")
    return lines


# --- equal bits for requests that ask ---

VERIFIED = 32  # tokens of a sequence in one pass
VERIFY_CASES = [("bf16", 16, 1024), ("bf16", 32, 1024), ("bf16", 64, 1024), ("bf16", 64, 4096),
                ("bf16", 256, 1024), ("int8", 64, 1024), ("int8", 256, 1024), ("int4", 64, 1024),
                ("int4", 256, 1024)]


def step_ms(device: Device, model: Model, step: Step) -> tuple[float, float]:
    fast, slow = predicted_seconds(device, step_ops(device, model, step), gap_of(step))
    return fast * 1e3, slow * 1e3


def verify_table(device: Device, model: Model) -> list[str]:
    """Two ways to give some requests the same bits in any batch, in ms of a decode step:
    --batch-invariant, for all; or to decode all as usual, and compute each VERIFIED tokens of a
    sequence that asks once more, by products whose bits do not depend on the batch. That pass also
    replaces their KV. No token differs, so nothing is computed again: a bound in favour of
    verifying. It costs less than the flag where fewer sequences ask than the last column says."""
    lines = ["| decode step | ms | with the flag | more by the flag | more if all are verified, "
             f"{VERIFIED} tokens a pass | verify below |", "|---|---|---|---|---|---|"]
    for weights, n, context in VERIFY_CASES:
        m = model.quantized(weights)
        usual = step_ms(device, m, Step(n, 1, context, wgmma=True))
        flag = step_ms(device, m, Step(n, 1, context, invariant=True))
        whole = step_ms(device, m, Step(n, VERIFIED, context, invariant=True))
        more = [b - a for a, b in zip(usual, flag)]
        verify = [ms / VERIFIED for ms in whole]
        share = min(100.0, max(0.0, *(100 * a / b for a, b in zip(more, verify))))
        spans = [f"{a:.1f} to {b:.1f}" for a, b in (usual, flag, [max(x, 0.0) for x in more],
                                                     verify)]
        lines.append(f"| {n} at {context}, {weights} | {' | '.join(spans)} | "
                     f"{f'{share:.0f} %' if share >= 1 else 'never'} |")
    return lines


def heads_table(device: Device, model: Model) -> list[str]:
    """Attention of one layer of a model with heads of 256: 16 of them share 8 KV heads."""
    m = replace(model, heads=16, kv_heads=8, head_dim=256)
    lines = ["| attention of a layer, heads of 256 | blocks | floor us | predicted us |",
             "|---|---|---|---|"]
    for step in (Step(1, 1, 1024), Step(64, 1, 4096), Step(1, 2048, 0), Step(1, 64, 16384)):
        ops = [replace(o, times=1) for o in attention(device, m, step)]
        fast, slow = predicted_seconds(device, ops, gap_of(step))
        blocks = " + ".join(str(n.blocks) for o in ops for n in o.launches)
        lines.append(f"| {Case('', '', step, None).bench} | {blocks} | "
                     f"{floor_seconds(device, ops) * 1e6:.0f} | "
                     f"{fast * 1e6:.0f} to {slow * 1e6:.0f} |")
    return lines


def ops_table(device: Device, ops: list[Op], gap: str) -> list[str]:
    lines = ["| op | times | launches | blocks | MB | MB from L2 | GFLOP | us, all times |",
             "|---|---|---|---|---|---|---|---|"]
    for o in ops:
        fast, slow = o.seconds(device, 1, gap) * 1e6, o.seconds(device, 0, gap) * 1e6
        blocks = " + ".join("chosen" if n.kernel == "cublasLtMatmul" else str(n.blocks)
                            for n in o.launches)
        lines.append(f"| {o.name} | {o.times} | {len(o.launches)} | {blocks} | "
                     f"{o.bytes * 1e-6:.3g} | {o.l2_bytes * 1e-6:.3g} | {o.operations * 1e-9:.3g} "
                     f"| {fast:.0f} to {slow:.0f} |")
    return lines


def guesses_table() -> list[str]:
    return ["| guess | from | to |", "|---|---|---|",
            *(f"| {name} | {a:g} | {b:g} |" for name, (a, b) in GUESSES.items())]


def page_part() -> list[str]:
    """The lines of a page between its marks."""
    device, model = Device(), model_8b()
    lines = [*cases_table(device, model), "", *guesses_table()]
    for c in (CASES[0], next(c for c in CASES if c.weights == "int4")):
        lines += ["", f"Ops of *{c.name}* (MB and GFLOP of one time):", "",
                  *ops_table(device, c.ops(device, model), c.gap)]
    lines += ["", *heads_table(device, model)]
    return [*lines, "", "`--batch-invariant` for all, and verifying for requests that ask",
            "([which is better](../../docs/design/kernels.md#equal-bits-for-some-requests)):", "",
            *verify_table(device, model)]


BEGIN, END = "<!-- tests/gpu/predict.py --write: begin -->", "<!-- end -->"


def with_part(page: str) -> str:
    head, rest = page.split(BEGIN + "\n", 1)
    return "\n".join([head + BEGIN, *page_part(), END]) + rest.split(END, 1)[1]


def print_step(device: Device, model: Model, step: Step) -> None:
    ops = step_ops(device, model, step)
    print("\n".join(ops_table(device, ops, gap_of(step))))
    fast, slow = predicted_seconds(device, ops, gap_of(step))
    n_bytes = sum(o.times * o.floor_bytes for o in ops)
    n_ops = sum(o.times * o.floor_operations for o in ops)
    print(f"\nfloor: {n_bytes * 1e-9:.3f} GB / {device.copy_rate * 1e-12:g} TB/s = "
          f"{in_ms(n_bytes / device.copy_rate)} ms, {n_ops * 1e-12:.3f} TFLOP / "
          f"{device.matrix_rate * 1e-12:g} TFLOP/s = {in_ms(n_ops / device.matrix_rate)} ms")
    print(f"predicted: {in_ms(fast)} to {in_ms(slow)} ms, "
          f"{sum(o.times * len(o.launches) for o in ops)} launches")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, default=HERE / "model-8b")
    parser.add_argument("--weights", default="bf16")
    parser.add_argument("--sequences", type=int, default=1)
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--shared", type=int, default=0)
    parser.add_argument("--invariant", action="store_true")
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--no-wgmma", action="store_true")
    parser.add_argument("--copy-rate", type=float, default=Device.copy_rate)
    parser.add_argument("--matrix-rate", type=float, default=Device.matrix_rate)
    parser.add_argument("--multiprocessors", type=int, default=Device.n_sms)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--verify", action="store_true")
    parser.add_argument("--write", type=Path)
    parser.add_argument("--check", type=Path)
    a = parser.parse_args()
    device = Device(a.copy_rate, a.matrix_rate, a.multiprocessors)
    if a.write or a.check:
        page = (a.write or a.check).read_text()
        if a.write:
            a.write.write_text(with_part(page))
        elif with_part(page) != page:
            print(f"{a.check} has other tables: run tests/gpu/predict.py --write {a.check}")
            return 1
    elif a.verify:
        print("\n".join(verify_table(device, Model.load(a.model))))
    elif a.table:
        print("\n".join(cases_table(device, Model.load(a.model))))
    else:
        print_step(device, Model.load(a.model).quantized(a.weights),
                   Step(a.sequences, a.rows, a.context, a.invariant, a.eager, not a.no_wgmma,
                        shared=min(a.shared, a.context)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
