#!/usr/bin/env python3
"""Make a random LoRA adapter for a model in Hugging Face layout, as the PEFT library writes it.

    make_tiny_adapter.py MODEL_DIR OUT_DIR [--targets q_proj,v_proj --rank 4 --alpha 8 --rslora
                                            --rank-pattern NAME=N,... --alpha-pattern NAME=X,...
                                            --dtype f32 --seed 1 --gain 0.5]

The same arguments give the same bytes. Both matrices are random, unlike those of a new adapter,
whose B is zero. `gain` is the size of the addition beside the model's own products.
"""
from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
from hf_files import Tensors, load_weights, save_safetensors, write_json  # noqa: E402

ALL = "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj"


def pattern(text: str) -> dict[str, float]:
    return {name: float(value) if "." in value else int(value)
            for name, value in (item.split("=") for item in text.split(",") if item)}


def of_module(patterns: dict[str, float], module: str, other: float) -> float:
    """The number of the first pattern that the module's name ends with."""
    for name, value in patterns.items():
        if re.fullmatch(rf"(.*\.)?({re.escape(name)})", module):
            return value
    return other


def config(args: argparse.Namespace, targets: list[str]) -> dict[str, object]:
    return {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": args.base,
        "r": args.rank, "lora_alpha": args.alpha, "use_rslora": args.rslora,
        "target_modules": targets, "rank_pattern": pattern(args.rank_pattern),
        "alpha_pattern": pattern(args.alpha_pattern), "bias": "none", "lora_dropout": 0.05,
        "fan_in_fan_out": False, "inference_mode": True, "init_lora_weights": True,
        "modules_to_save": None, "use_dora": False, "layers_to_transform": None,
    }


def matrices(args: argparse.Namespace, weights: Tensors, targets: list[str]) -> Tensors:
    rng = np.random.default_rng(args.seed)
    ranks = pattern(args.rank_pattern)
    out: Tensors = {}
    for name in sorted(weights):
        found = re.fullmatch(r"(model\.layers\.\d+\.\S*?\.?(\w+))\.weight", name)
        if not found or found[2] not in targets or weights[name].ndim != 2:
            continue
        n, k = weights[name].shape
        rank = int(of_module(ranks, found[1], args.rank))
        a = rng.standard_normal((rank, k), dtype=np.float32) / np.sqrt(k)
        b = rng.standard_normal((n, rank), dtype=np.float32) * args.gain / np.sqrt(rank)
        out[f"base_model.model.{found[1]}.lora_A.weight"] = a.astype(np.float32)
        out[f"base_model.model.{found[1]}.lora_B.weight"] = b.astype(np.float32)
    return out


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser()
    p.add_argument("model", type=Path)
    p.add_argument("out", type=Path)
    p.add_argument("--base", default="")
    p.add_argument("--targets", default=ALL)
    p.add_argument("--rank", type=int, default=4)
    p.add_argument("--alpha", type=float, default=8)
    p.add_argument("--rslora", action="store_true")
    p.add_argument("--rank-pattern", default="")
    p.add_argument("--alpha-pattern", default="")
    p.add_argument("--dtype", default="f32", choices=["f32", "f16", "bf16"])
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--gain", type=float, default=0.5)
    return p


def make(args: argparse.Namespace) -> None:
    targets = args.targets.split(",")
    args.out.mkdir(parents=True, exist_ok=True)
    write_json(args.out / "adapter_config.json", config(args, targets))
    save_safetensors(args.out / "adapter_model.safetensors",
                     matrices(args, load_weights(args.model), targets), args.dtype)


def main() -> None:
    make(parser().parse_args())


if __name__ == "__main__":
    main()
