#!/usr/bin/env python3
"""Write a GGUF file of a model in Hugging Face layout, as llama.cpp's converter would.

    make_gguf.py DIR FILE [--type f32] [--embedding-type TYPE] [--parts N] [--exact DIR]

DIR is of any family of make_tiny_family.py, with or without the tokenizer of make_tiny_model.py.
Matrices whose rows are no whole blocks of the type become f16; vectors are f32. --parts splits the
tensors over files NAME-00001-of-0000N.gguf. --exact writes a directory with the same model whose
f32 weights are those that the file's codes stand for.
"""
from __future__ import annotations

import argparse
import json
import math
import shutil
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
import gguf_tokenizer  # noqa: E402
import numpy_gguf  # noqa: E402
from dummy_gguf import gguf_string  # noqa: E402
from gguf_tokenizer import value_bytes  # noqa: E402
from hf_files import Tensors, load_weights, save_weights, write_json  # noqa: E402

Config = dict[str, Any]
ALIGNMENT = 32
ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3",
                 "phi3": "phi3", "gemma2": "gemma2", "gemma3_text": "gemma3",
                 "smollm3": "smollm3", "olmo2": "olmo2", "granite": "granite",
                 "stablelm": "stablelm", "mixtral": "llama", "qwen2_moe": "qwen2moe",
                 "qwen3_moe": "qwen3moe", "olmoe": "olmoe"}
PAIRED = {"llama", "smollm3", "granite"}  # rotated pairs stand side by side
GEMMAS = {"gemma2", "gemma3"}
NAMES = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q",
         "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.qkv_proj": "attn_qkv", "self_attn.o_proj": "attn_output",
         "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
         "pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm",
         "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.gate_up_proj": "ffn_up",
         "mlp.down_proj": "ffn_down", "mlp.gate": "ffn_gate_inp",
         "block_sparse_moe.gate": "ffn_gate_inp",
         "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
         "mlp.shared_expert.up_proj": "ffn_up_shexp",
         "mlp.shared_expert.down_proj": "ffn_down_shexp",
         "mlp.shared_expert_gate": "ffn_gate_inp_shexp"}
EXPERTS = {"gate_proj": "ffn_gate_exps", "up_proj": "ffn_up_exps", "down_proj": "ffn_down_exps",
           "w1": "ffn_gate_exps", "w3": "ffn_up_exps", "w2": "ffn_down_exps"}
ENDS = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def gguf_name(name: str, arch: str) -> str:
    stem, suffix = name.rsplit(".", 1)
    if stem in ENDS:
        return f"{ENDS[stem]}.{suffix}"
    _, _, layer, part = stem.split(".", 3)
    if part == "post_attention_layernorm":
        new = "post_attention_norm" if arch in GEMMAS | {"olmo2"} else "ffn_norm"
    else:
        new = NAMES[part]
    return f"blk.{layer}.{new}.{suffix}"


def pair_rows(w: np.ndarray, head_dim: int) -> np.ndarray:
    """Row i of a head's first half goes beside row i of its second half."""
    return w.reshape(-1, 2, head_dim // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def unpair_rows(w: np.ndarray, head_dim: int) -> np.ndarray:
    return w.reshape(-1, head_dim // 2, 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def head_dim_of(c: Config) -> int:
    return c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]


def is_q_or_k(name: str) -> bool:
    return name.split(".")[-2] in ("q_proj", "k_proj")


class File:
    """Keys and tensors (name, kind, shape with rows first, bytes)."""

    def __init__(self) -> None:
        self.keys: dict[str, object] = {}
        self.tensors: list[tuple[str, str, tuple[int, ...], bytes]] = []

    def add(self, name: str, kind: str, x: np.ndarray) -> None:
        self.tensors.append((name, kind, x.shape, numpy_gguf.encode(x, kind)))

    def write(self, path: Path) -> None:
        data, offsets = bytearray(), []
        for _, _, _, raw in self.tensors:
            data += b"\0" * (-len(data) % ALIGNMENT)
            offsets.append(len(data))
            data += raw
        out = bytearray(b"GGUF" + struct.pack("<IQQ", 3, len(self.tensors), len(self.keys)))
        for key, value in self.keys.items():
            kind, raw = bools(value) if is_bools(value) else value_bytes(value)
            out += gguf_string(key) + struct.pack("<I", kind) + raw
        for (name, tensor_kind, shape, _), offset in zip(self.tensors, offsets):
            out += gguf_string(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape[::-1])
            out += struct.pack("<IQ", numpy_gguf.KINDS[tensor_kind].number, offset)
        out += b"\0" * (-len(out) % ALIGNMENT)
        path.write_bytes(out + data)


def is_bools(value: object) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], bool)


def bools(value: Any) -> tuple[int, bytes]:
    return 9, struct.pack("<IQ", 7, len(value)) + bytes(value)


# ---- metadata ----

def rope_keys(c: Config, arch: str) -> dict[str, object]:
    scaling = c.get("rope_scaling") or {}
    kind = scaling.get("rope_type") or scaling.get("type")
    rot_dim = int(head_dim_of(c) * c.get("partial_rotary_factor", 1))
    keys: dict[str, object] = {"rope.freq_base": float(c["rope_theta"]),
                               "rope.dimension_count": rot_dim}
    if arch == "gemma3":
        keys["rope.freq_base_swa"] = float(c["rope_local_base_freq"])
    if kind in ("linear", "yarn"):
        keys |= {"rope.scaling.type": kind, "rope.scaling.factor": float(scaling["factor"])}
    if kind == "yarn":
        keys["rope.scaling.original_context_length"] = scaling["original_max_position_embeddings"]
    if kind == "longrope":
        ratio = c["max_position_embeddings"] / c["original_max_position_embeddings"]
        keys["rope.scaling.attn_factor"] = math.sqrt(
            1 + math.log(ratio) / math.log(c["original_max_position_embeddings"]))
        keys["rope.scaling.original_context_length"] = c["original_max_position_embeddings"]
    return keys


def window_keys(c: Config, arch: str) -> dict[str, object]:
    n, window = c["num_hidden_layers"], c.get("sliding_window") or 0
    keys: dict[str, object] = {}
    if arch == "qwen2" and c.get("use_sliding_window"):
        keys["attention.sliding_window_pattern"] = [i >= c["max_window_layers"] for i in range(n)]
    elif arch == "gemma3":
        period = c.get("sliding_window_pattern", 6)
        keys["attention.sliding_window_pattern"] = [(i + 1) % period != 0 for i in range(n)]
    elif arch not in ("gemma2", "phi3", "llama"):
        window = 0
    if arch == "phi3" or (window and (arch in GEMMAS | {"llama"} or keys)):
        keys["attention.sliding_window"] = window
    return keys


def own_keys(c: Config, arch: str) -> dict[str, object]:
    """Keys of one architecture."""
    if arch == "granite":
        names = {"attention.scale": "attention_multiplier",
                 "embedding_scale": "embedding_multiplier",
                 "residual_scale": "residual_multiplier", "logit_scale": "logits_scaling"}
        return {key: float(c[name]) for key, name in names.items()}
    if arch == "stablelm":
        return {"use_parallel_residual": c["use_parallel_residual"],
                "attention.layer_norm_epsilon": c["layer_norm_eps"]}
    if c["model_type"] in ("mixtral", "qwen2_moe", "qwen3_moe", "olmoe"):
        return expert_keys(c)
    caps = {name: c[name] for name in ("attn_logit_softcapping", "final_logit_softcapping")
            if c.get(name)}
    return {"attention.layer_norm_rms_epsilon": c["rms_norm_eps"], **caps}


def expert_keys(c: Config) -> dict[str, object]:
    names = {"expert_count": "num_experts", "expert_used_count": "num_experts_per_tok",
             "expert_feed_forward_length": "moe_intermediate_size",
             "expert_shared_feed_forward_length": "shared_expert_intermediate_size"}
    if "num_local_experts" in c:
        names["expert_count"] = "num_local_experts"
    return {key: c[name] for key, name in names.items() if name in c}


def metadata(c: Config, arch: str) -> dict[str, object]:
    head_dim = head_dim_of(c)
    keys = {"block_count": c["num_hidden_layers"], "context_length": c["max_position_embeddings"],
            "embedding_length": c["hidden_size"], "feed_forward_length": c["intermediate_size"],
            "attention.head_count": c["num_attention_heads"],
            "attention.head_count_kv": c["num_key_value_heads"],
            "attention.key_length": head_dim, "attention.value_length": head_dim,
            "vocab_size": c["vocab_size"],
            **own_keys(c, arch), **rope_keys(c, arch), **window_keys(c, arch)}
    if "attention.layer_norm_rms_epsilon" not in keys and arch != "stablelm":
        keys["attention.layer_norm_rms_epsilon"] = c["rms_norm_eps"]
    return {"general.architecture": arch, "general.name": "tiny",
            **{f"{arch}.{key}": value for key, value in keys.items()},
            "tokenizer.ggml.eos_token_id": c["eos_token_id"],
            "tokenizer.ggml.bos_token_id": c["bos_token_id"]}


def tokenizer_keys(folder: Path, n_vocab: int) -> dict[str, object]:
    """Fill the vocabulary up to the rows of the embedding, as llama.cpp's converter does."""
    if not (folder / "tokenizer.json").exists():
        return {}
    keys = gguf_tokenizer.tokenizer_fields(folder)
    tokens, types = keys["tokenizer.ggml.tokens"], keys["tokenizer.ggml.token_type"]
    tokens += [f"[PAD{i}]" for i in range(len(tokens), n_vocab)]
    types += [gguf_tokenizer.UNUSED] * (n_vocab - len(types))
    return keys


# ---- tensors ----

def rope_tensors(c: Config) -> dict[str, np.ndarray]:
    scaling = c.get("rope_scaling") or {}
    kind = scaling.get("rope_type") or scaling.get("type")
    if kind == "longrope":
        return {f"rope_factors_{name}.weight": np.array(scaling[f"{name}_factor"], np.float32)
                for name in ("short", "long")}
    if kind != "llama3":
        return {}
    d = head_dim_of(c)
    divisors = []
    old, low, high = (scaling[key] for key in ("original_max_position_embeddings",
                                               "low_freq_factor", "high_freq_factor"))
    for i in range(d // 2):
        wavelength = 2 * math.pi * c["rope_theta"] ** (2 * i / d)
        smooth = (old / wavelength - low) / (high - low)
        smooth = min(max(smooth, 0.0), 1.0)
        divisors.append(1 / ((1 - smooth) / scaling["factor"] + smooth))
    return {"rope_freqs.weight": np.array(divisors, np.float32)}


def stored(name: str, w: np.ndarray, c: Config, arch: str) -> np.ndarray:
    """The array as GGUF files have it."""
    if arch in PAIRED and is_q_or_k(name):
        return pair_rows(w, head_dim_of(c))
    if arch in GEMMAS and name.endswith("norm.weight"):
        return w + np.float32(1)
    return w


def expert_name(merged: str, e: int, arch: str) -> str:
    """The name here of expert e of a merged tensor."""
    _, layer, part = merged.split(".")
    mixtral = arch == "llama"
    names = [name for name, new in EXPERTS.items() if new == part and name[0] == "w"] if mixtral \
        else [name for name, new in EXPERTS.items() if new == part and name[0] != "w"]
    return (f"model.layers.{layer}.{'block_sparse_moe' if mixtral else 'mlp'}.experts.{e}."
            f"{names[0]}.weight")


def merge_experts(tensors: Tensors) -> list[tuple[str, str, np.ndarray]]:
    """(name in GGUF without the suffix, or "", name here, array); one array for all experts."""
    merged: dict[str, list[np.ndarray]] = {}
    out = []
    for name, w in tensors.items():
        if ".experts." not in name:
            out.append(("", name, w))
            continue
        layer, part = name.split(".")[2], name.split(".")[-2]
        merged.setdefault(f"blk.{layer}.{EXPERTS[part]}", []).append(w)
    return out + [(name, name + ".weight", np.stack(ws)) for name, ws in merged.items()]


def kind_of(name: str, w: np.ndarray, kind: str, embedding: str) -> str:
    if w.ndim == 1:
        return "f32"
    kind = embedding if name in ("model.embed_tokens.weight", "lm_head.weight") else kind
    return kind if w.shape[-1] % numpy_gguf.KINDS[kind].elements == 0 else "f16"


def parts_of(path: Path, whole: File, n: int) -> list[tuple[Path, File]]:
    files = []
    for i in range(n):
        part = File()
        part.keys = {**(whole.keys if i == 0 else {}), "split.no": i, "split.count": n,
                     "split.tensors.count": len(whole.tensors)}
        part.tensors = whole.tensors[i::n]
        files.append((path.with_name(f"{path.stem}-{i + 1:05d}-of-{n:05d}.gguf"), part))
    return files


def make(folder: Path, path: Path, *, kind: str = "f32", embedding: str = "",
         parts: int = 1, exact: Path | None = None) -> Path:
    """Write the file or files; return the path of the first."""
    c = json.loads((folder / "config.json").read_text())
    arch = ARCHITECTURES[c["model_type"]]
    out, decoded = File(), Tensors()
    out.keys = {**metadata(c, arch), **tokenizer_keys(folder, c["vocab_size"])}
    for merged, name, w in merge_experts(load_weights(folder)):
        as_stored = stored(name, w, c, arch)
        this_kind = kind_of(name, w, kind, embedding or kind)
        out.add(merged + ".weight" if merged else gguf_name(name, arch), this_kind, as_stored)
        back = numpy_gguf.decode(out.tensors[-1][3], this_kind, as_stored.shape)
        if arch in PAIRED and is_q_or_k(name):
            back = unpair_rows(back, head_dim_of(c))
        if not merged:
            decoded[name] = w if w.ndim == 1 else back
        for e in range(len(w) if merged else 0):
            decoded[expert_name(merged, e, arch)] = back[e]
    for name, factors in rope_tensors(c).items():
        out.add(name, "f32", factors)
    if exact:
        exact.mkdir(parents=True, exist_ok=True)
        for file in folder.glob("*.json"):
            shutil.copy(file, exact)
        write_json(exact / "config.json", {**c, "torch_dtype": "float32"})
        save_weights(exact, decoded, "f32")
    if parts == 1:
        out.write(path)
        return path
    files = parts_of(path, out, parts)
    for part_path, part in files:
        part.write(part_path)
    return files[0][0]


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("folder", type=Path, metavar="DIR")
    p.add_argument("out", type=Path, metavar="FILE")
    p.add_argument("--type", choices=sorted(numpy_gguf.KINDS), default="f32", dest="kind")
    p.add_argument("--embedding-type", choices=sorted(numpy_gguf.KINDS), default="",
                   dest="embedding")
    p.add_argument("--parts", type=int, default=1)
    p.add_argument("--exact", type=Path, metavar="DIR")
    a = p.parse_args()
    print(make(a.folder, a.out, kind=a.kind, embedding=a.embedding, parts=a.parts, exact=a.exact))


if __name__ == "__main__":
    main()
