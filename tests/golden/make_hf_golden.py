#!/usr/bin/env python3
"""Write the golden logits in this folder, computed by Hugging Face transformers.

The program is run by hand, only to add or change a case; the tests read the committed files. On
Debian 12 (the cases of the Llama family were written with transformers 4.46.3 and python3-torch,
those of the other families with transformers 5.23.0 and torch 2.15.0 of PyPI):

    python3 -m venv /tmp/hf
    /tmp/hf/bin/pip install torch transformers
    /tmp/hf/bin/python tests/golden/make_hf_golden.py [CASE ...]

Each case is a folder: config.json and model.safetensors (random weights, see make_tiny_model.py and
make_tiny_family.py), ids.txt, and logits.f32 (raw little-endian float32 [n_ids, vocab]) from the
family's own class with the weights widened to float64. transformers computes RoPE tables and norms
in float32 all the same. Cases that exist are left alone unless they are named.
"""
from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tools"))
import make_tiny_family  # noqa: E402
import make_tiny_model  # noqa: E402

N_IDS = 72
COMMON = "--no-tokenizer --layers 2 --dim 32 --ffn 40 --vocab 64 --max-pos 128"
CASES = {
    "plain": "--heads 4 --kv-heads 2 --seed 11",
    "tied-multi-query": "--heads 4 --kv-heads 1 --tied --seed 12",
    "rope-llama3": "--heads 2 --kv-heads 2 --head-dim 32 --rope-theta 5000 --seed 13 "
                   "--rope-scaling llama3:8:1:4:64",
    "rope-linear-bias": "--heads 4 --kv-heads 2 --head-dim 10 --bias --rope-scaling linear:4 "
                        "--seed 14",
    "bf16": "--heads 4 --kv-heads 2 --dtype bf16 --seed 15",
    "f16-sharded": "--heads 4 --kv-heads 4 --dtype f16 --shards 3 --seed 16",
}


# Llama has the cases above; transformers has no class of the other.
NOT_HF = {"llama", "bailing-moe"}


def hf_logits(model_dir: Path, ids: list[int]) -> np.ndarray:
    import torch
    from transformers import AutoModelForCausalLM
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float64,
                                                 attn_implementation="eager",
                                                 experts_implementation="eager")
    model.config.use_cache = False
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].numpy()


def make_case(name: str) -> None:
    out = HERE / name
    if name in CASES:
        make_tiny_model.make(make_tiny_model.parser().parse_args(
            [str(out), *COMMON.split(), *CASES[name].split()]))
    else:
        make_tiny_family.make(out, name, seed=len(name), vocab=64)
    ids = np.random.default_rng(len(name)).integers(0, 64, N_IDS).tolist()
    (out / "ids.txt").write_text(" ".join(map(str, ids)) + "\n")
    logits = hf_logits(out, ids)
    (out / "logits.f32").write_bytes(logits.astype("<f4").tobytes())
    print(f"{name}: {len(ids)} positions, logits within {np.abs(logits).max():.2f}")


def main() -> None:
    families = [name for name in make_tiny_family.CONFIGS if name not in NOT_HF]
    new = [name for name in [*CASES, *families] if not (HERE / name / "logits.f32").exists()]
    for name in sys.argv[1:] or new:
        make_case(name)


if __name__ == "__main__":
    main()
