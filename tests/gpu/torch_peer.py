"""Measure PyTorch's products and attention at the decisive shapes, for comparison with Tarn's.

    torch_peer.py FILE.csv

Rows have the names of tarn-gpu-speed. As there, several copies of weights and KV are used in turn,
which together exceed the L2 cache. Times are medians of CUDA events around many calls behind a
sleeping kernel, so that the host's launches do not count. If PyTorch is not installed or finds no
GPU, the script prints that and ends with 0.
"""
from __future__ import annotations

import sys
from typing import Callable

COLD_BYTES = 256 << 20
N_CALLS = 50
N_ROUNDS = 5
DIM, FFN, N_HEADS, N_KV_HEADS, HEAD_DIM = 4096, 14336, 32, 8, 128
SLEEP_CYCLES = 20_000_000  # about 10 ms


def time_us(torch, call: Callable[[int], object]) -> float:
    """Microseconds of GPU time of one call."""
    times = []
    for i in range(3):
        call(i)
    for _ in range(N_ROUNDS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        torch.cuda._sleep(SLEEP_CYCLES)
        begin.record()
        for i in range(N_CALLS):
            call(i)
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / N_CALLS)
    return sorted(times)[N_ROUNDS // 2]


def product(torch, n: int, k: int, t: int) -> float:
    n_copies = COLD_BYTES // (2 * n * k) + 1
    weights = [torch.randn(n, k, device="cuda", dtype=torch.bfloat16) for _ in range(n_copies)]
    x = torch.randn(t, k, device="cuda", dtype=torch.bfloat16)
    return time_us(torch, lambda i: torch.nn.functional.linear(x, weights[i % n_copies]))


def attention(torch, n_seqs: int, n_rows: int, context: int) -> float:
    n_tokens = context + n_rows
    each = 2 * 2 * n_seqs * N_KV_HEADS * n_tokens * HEAD_DIM
    n_copies = min(COLD_BYTES // each + 1, 64)

    def random(n_heads: int, n: int):
        return torch.randn(n_seqs, n_heads, n, HEAD_DIM, device="cuda", dtype=torch.bfloat16)

    q = random(N_HEADS, n_rows)
    kv = [(random(N_KV_HEADS, n_tokens), random(N_KV_HEADS, n_tokens)) for _ in range(n_copies)]
    mask = None
    if context and n_rows > 1:  # is_causal means the upper left corner there
        mask = torch.ones(n_rows, n_tokens, device="cuda", dtype=torch.bool).tril(context)
    causal = context == 0 and n_rows > 1
    return time_us(torch, lambda i: torch.nn.functional.scaled_dot_product_attention(
        q, *kv[i % n_copies], attn_mask=mask, is_causal=causal, enable_gqa=True))


def main() -> int:
    try:
        import torch
    except ImportError:
        print("PyTorch is not installed here: nothing to compare with")
        return 0
    if not torch.cuda.is_available():
        print("PyTorch sees no GPU: nothing to compare with")
        return 0
    print(f"PyTorch {torch.__version__}")
    with open(sys.argv[1], "w", buffering=1) as out:
        out.write("op,shape,us\n")

        def add(op: str, shape: str, measure: Callable[[], float]) -> None:
            try:
                us = measure()
            except RuntimeError as error:  # out of memory, or a shape that it does not take
                print(f"{op} {shape}: {str(error)[:200]}")
                return
            torch.cuda.empty_cache()
            out.write(f"{op},{shape},{us:.3f}\n")
            print(f"{op:10} {shape:40} {us:10.2f} us", flush=True)

        add("gemm", "ceiling bf16 N 8192 K 8192 T 8192", lambda: product(torch, 8192, 8192, 8192))
        for t in (1, 16, 64, 2048):
            add("gemm", f"gate_up bf16 N {2 * FFN} K {DIM} T {t}",
                lambda t=t: product(torch, 2 * FFN, DIM, t))
            if t <= 64:
                add("gemm", f"o bf16 N {DIM} K {DIM} T {t}",
                    lambda t=t: product(torch, DIM, DIM, t))
        for n_seqs, n_rows, context in ((1, 1, 1024), (64, 1, 4096), (1, 2048, 0), (1, 8192, 0),
                                        (1, 64, 16384)):
            add("attention", f"8B {n_seqs} seqs x {n_rows} rows @ {context}",
                lambda s=n_seqs, r=n_rows, c=context: attention(torch, s, r, c))
    return 0


if __name__ == "__main__":
    sys.exit(main())
