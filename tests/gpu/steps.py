"""The steps of tests/gpu/run: what runs, in which order, for how long at most."""
from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
PLAN_SECONDS = 480.0
FIND_SECONDS = 5.0  # what finding the programs may take beside the steps
KERNEL_TESTS = ("activation", "attention", "attention_shared", "attention_wgmma", "crc32c",
                "experts", "gemm", "norms", "sample", "small", "wgmma",
                "same_tokens_gpu")
PORT = 18093


@dataclass
class Command:
    name: str  # of its log; unique
    argv: list[str]
    env: dict[str, str] = field(default_factory=dict)


@dataclass
class Step:
    name: str
    seconds: float  # the whole step has no more
    commands: list[Command]
    n_beside: int = 1


FULL_SIZE = {"TARN_GPU_TEST": "1"}


def kernel_tests(bin_dir: Path, prefix: str, env: dict[str, str],
                 wrapper: list[str] | None = None) -> list[Command]:
    return [Command(f"{prefix}_{name}", [*(wrapper or []), str(bin_dir / "tarn-gpu-tests"), name],
                    env) for name in KERNEL_TESTS]


def sanitizers(bin_dir: Path) -> list[Command]:
    """Every kernel test on small shapes under every tool; the tools are tens of times slower."""
    return [command for tool in ("memcheck", "racecheck", "synccheck")
            for command in kernel_tests(bin_dir, tool, {"CUDA_MODULE_LOADING": "LAZY"},
                                        ["compute-sanitizer", "--tool", tool,
                                         "--error-exitcode", "9"])]


def bench(bin_dir: Path, work: Path, name: str, cases: list[str], *options: str) -> Command:
    """tarn-bench on an 8 B model of random weights; its JSON goes to NAME.json."""
    argv = [str(bin_dir / "tarn-bench"), "--model", str(HERE / "model-8b"), "--load-format",
            "dummy", "--device", "cuda", "--no-limits", "--repetitions", "3", "--max-seconds", "25",
            "--max-num-batched-tokens", "2048", "--json", *options]
    for case in cases:
        argv += ["--case", case]
    return Command(name, ["/bin/sh", "-c", 'out=$1; shift; exec "$@" >"$out"', "sh",
                          str(work / f"{name}.json"), *argv])


def make_steps(bin_dir: Path, work: Path) -> list[Step]:
    """All steps; their seconds and FIND_SECONDS add up to PLAN_SECONDS at most."""
    speed, python = str(bin_dir / "tarn-gpu-speed"), sys.executable
    decode_and_prefill = ["decode:1:1024", "decode:64:4096", "decode:16:4096@4096",
                          "decode:64:4096@4096", "prefill:2048", "prefill:8192",
                          "prefill:64@16384"]
    server = [python, str(HERE / "serve.py"), str(bin_dir / "tarn-server"), str(work),
              str(HERE / "model-1b"), str(PORT)]
    in_turn = [*server, "server-in-turn", "--no-async-scheduling"]
    return [
        # Every kernel against the reference on small shapes: does anything work at all?
        Step("first", 20, kernel_tests(bin_dir, "first", {}), n_beside=4),
        Step("ceilings", 10, [Command("ceilings", [speed, "--ceilings", str(work / "ceilings.csv")],
                                      FULL_SIZE)]),
        # Memory of the device as a whole is compared: nothing else runs beside it.
        Step("device", 20, [Command("device", [str(bin_dir / "tarn-gpu-tests"), "device"])]),
        # Two GPUs and more; its tests skip themselves where there is one, or no NCCL.
        Step("group", 15, [Command("group", [str(bin_dir / "tarn-gpu-tests"), "collective"])]),
        Step("kernels", 85, kernel_tests(bin_dir, "full", FULL_SIZE), n_beside=4),
        Step("decisive", 40, [Command("decisive", [speed, "--decisive", "--max-seconds", "35",
                                                   str(work / "decisive.csv")], FULL_SIZE)]),
        Step("model", 75, [bench(bin_dir, work, "bench-8b", decode_and_prefill),
                           bench(bin_dir, work, "bench-8b-int4", ["decode:1:1024", "prefill:2048"],
                                 "--quantization", "int4"),
                           bench(bin_dir, work, "bench-8b-int8", ["decode:1:1024", "prefill:2048"],
                                 "--quantization", "int8"),
                           bench(bin_dir, work, "bench-8b-fp8", ["decode:1:1024"],
                                 "--quantization", "fp8")]),
        Step("torch", 30, [Command("torch", [python, str(HERE / "torch_peer.py"),
                                             str(work / "torch.csv")])]),
        Step("server", 45, [Command("server", [*server, "server"]),
                            Command("server-in-turn", in_turn)]),
        Step("transformers", 25, [Command("transformers", [
            python, str(HERE / "transformers_peer.py"), str(HERE / "model-1b")])]),
        Step("speed", 45, [Command("speed", [speed, "--max-seconds", "40",
                                             str(work / "speed.csv")], FULL_SIZE)]),
        Step("invariant", 20, [Command("invariant", [speed, "--invariant", "--max-seconds", "16",
                                                     str(work / "invariant.csv")], FULL_SIZE)]),
        Step("sanitizers", 45, sanitizers(bin_dir), n_beside=3),
    ]
