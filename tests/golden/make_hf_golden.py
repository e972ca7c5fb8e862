#!/usr/bin/env python3
"""Write the golden logits in this folder, computed by Hugging Face transformers.

The program is run by hand, only to add or change a case; the tests read the committed files. On
Debian 12:

    apt-get install python3-torch python3-venv
    python3 -m venv --system-site-packages /tmp/hf
    /tmp/hf/bin/pip install transformers==4.46.3
    /tmp/hf/bin/python tests/golden/make_hf_golden.py

Each case is a folder: config.json and model.safetensors (random weights, see make_tiny_model.py),
ids.txt, and logits.f32 (raw little-endian float32 [n_ids, vocab]) from LlamaForCausalLM with the
weights widened to float64. transformers computes RoPE tables and RMSNorm in float32 all the same.
"""
from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tools"))
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


def hf_logits(model_dir: Path, ids: list[int]) -> np.ndarray:
    import torch
    from transformers import LlamaForCausalLM
    model = LlamaForCausalLM.from_pretrained(model_dir, torch_dtype=torch.float64,
                                             attn_implementation="eager")
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].numpy()


def make_case(name: str, options: str) -> None:
    out = HERE / name
    make_tiny_model.make(make_tiny_model.parser().parse_args(
        [str(out), *COMMON.split(), *options.split()]))
    ids = np.random.default_rng(len(name)).integers(0, 64, N_IDS).tolist()
    (out / "ids.txt").write_text(" ".join(map(str, ids)) + "\n")
    logits = hf_logits(out, ids)
    (out / "logits.f32").write_bytes(logits.astype("<f4").tobytes())
    print(f"{name}: {len(ids)} positions, logits within {np.abs(logits).max():.2f}")


def main() -> None:
    for name, options in CASES.items():
        make_case(name, options)


if __name__ == "__main__":
    main()
