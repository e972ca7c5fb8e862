#!/usr/bin/env python3
"""Write the golden logits of LoRA adapters (the folders lora-*), computed by the PEFT library.

The program is run by hand, as make_hf_golden.py is:

    python3 -m venv /tmp/hf
    /tmp/hf/bin/pip install torch transformers peft
    /tmp/hf/bin/python tests/golden/make_lora_golden.py [CASE ...]

Each case is a random adapter of the model of another case, whose folder
base_model_name_or_path of adapter_config.json names and whose ids.txt it shares. logits.f32 is what
the library computes in float64.
"""
from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tools"))
import make_tiny_adapter  # noqa: E402

CASES = {
    # All modules, with a rank and a scale of their own for some.
    "lora-plain": "plain --rank 4 --alpha 6 --rank-pattern self_attn.k_proj=2,"
                  "model.layers.1.mlp.down_proj=7 --alpha-pattern v_proj=3.5",
    "lora-plain-bf16": "plain --targets q_proj,v_proj --rank 3 --alpha 5 --rslora --dtype bf16",
    # Products that the checkpoint has fused, and norms behind the parts of a layer.
    "lora-phi3": "phi3 --targets qkv_proj,o_proj,gate_up_proj,down_proj --rank 5",
    "lora-gemma2": "gemma2 --rank 4",
    "lora-granite": "granite --targets k_proj,o_proj,up_proj,down_proj --rank 2 --dtype f16",
}


def peft_logits(base: Path, adapter: Path, ids: list[int]) -> np.ndarray:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float64,
                                                 attn_implementation="eager")
    model = PeftModel.from_pretrained(model, adapter, autocast_adapter_dtype=False).double()
    model.config.use_cache = False
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].numpy()


def make_case(name: str) -> None:
    base, *options = CASES[name].split()
    out = HERE / name
    make_tiny_adapter.make(make_tiny_adapter.parser().parse_args(
        [str(HERE / base), str(out), "--base", base, "--seed", str(len(name)), *options]))
    ids = [int(word) for word in (HERE / base / "ids.txt").read_text().split()]
    logits = peft_logits(HERE / base, out, ids)
    (out / "logits.f32").write_bytes(logits.astype("<f4").tobytes())
    alone = np.frombuffer((HERE / base / "logits.f32").read_bytes(), dtype="<f4")
    changed = np.abs(logits.reshape(-1) - alone).max()
    print(f"{name}: {len(ids)} positions, logits within {np.abs(logits).max():.2f}, "
          f"changed by up to {changed:.2f}")


def main() -> None:
    for name in sys.argv[1:] or [n for n in CASES if not (HERE / n / "logits.f32").exists()]:
        make_case(name)


if __name__ == "__main__":
    main()
