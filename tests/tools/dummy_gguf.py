#!/usr/bin/env python3
"""Write a GGUF file of a Llama model with random weights, so that llama.cpp and its forks can be
timed on the same shape as `tarn-bench --load-format dummy`.

    dummy_gguf.py --type bf16|f32|q8_0|q4_0 --out FILE [--output-type q8_0] [--config-dir DIR]
                  [--width 1024 --layers 28 --heads 16 --kv-heads 8 --head-dim 128 --ffn 3072
                   --vocab 50257 --untied --seed 1]

The default shape has 0.49 billion parameters. The embedding and the output layer are one tensor
unless --untied, and have --output-type: q8_0 where --type is q4_0, else --type. Weights are normal
with deviation 1/sqrt(inputs), norms are 1. The same arguments give the same file.

The tokenizer is byte-level BPE as GPT-2's: the 256 bytes, a token for every pair of lower-case
letters and for a space with one, then made-up words, so any text can be fed and any answer printed.
--config-dir gets the config.json of the same shape; `gguf_vocab_to_hf.py FILE DIR` adds the same
tokenizer.
"""
from __future__ import annotations

import argparse
import string
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
from gguf_vocab_to_hf import byte_letters  # noqa: E402
from hf_files import to_bf16_bits, write_json  # noqa: E402

ALIGNMENT = 32   # GGUF's default: where each tensor's data begins
BLOCK = 32       # weights that share a scale in q8_0 and q4_0
CHUNK = 1 << 20  # weights made at a time: the file may be larger than memory
CONTEXT = 32768
ROPE_THETA = 10000.0
NORM_EPSILON = 1e-5
SPACE = "\u0120"  # how byte-level BPE writes it
END_OF_TEXT = "<|endoftext|>"
NORMAL, CONTROL = 1, 3  # tokenizer.ggml.token_type

# type -> (id of the tensor type, id of the file type, bytes per block, weights per block)
TYPES = {"f32": (0, 0, 4, 1), "bf16": (30, 32, 2, 1), "q8_0": (8, 7, 34, BLOCK),
         "q4_0": (2, 2, 18, BLOCK)}


# ---- encoding of weights ----

def join_scales(scales: np.ndarray, quants: np.ndarray) -> bytes:
    """Blocks of an f16 scale and the quantized values behind it."""
    return np.hstack([scales.astype("<f2").view(np.uint8), quants.view(np.uint8)]).tobytes()


def encode_q8_0(x: np.ndarray) -> bytes:
    blocks = x.reshape(-1, BLOCK)
    scales = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
    return join_scales(scales, np.rint(blocks / np.maximum(scales, 1e-30)).astype(np.int8))


def encode_q4_0(x: np.ndarray) -> bytes:
    """The value of the largest magnitude becomes -8 steps. Value i of a block is in the low half of
    byte i, value i + 16 in the high half, both with 8 added."""
    blocks = x.reshape(-1, BLOCK)
    low, high = blocks.min(axis=1, keepdims=True), blocks.max(axis=1, keepdims=True)
    scales = np.where(-low > high, low, high) / np.float32(-8)
    divisors = np.where(scales == 0, np.float32(1), scales)
    quants = np.clip(np.rint(blocks / divisors) + 8, 0, 15).astype(np.uint8)
    return join_scales(scales, quants[:, :BLOCK // 2] | quants[:, BLOCK // 2:] << 4)


ENCODERS = {"f32": lambda x: x.astype("<f4").tobytes(),
            "bf16": lambda x: to_bf16_bits(x).astype("<u2").tobytes(),
            "q8_0": encode_q8_0, "q4_0": encode_q4_0}


# ---- the model ----

class Tensor:
    """shape is (outputs, inputs), or (n,) for a norm, which is all ones."""

    def __init__(self, name: str, shape: tuple[int, ...], kind: str) -> None:
        self.name, self.shape, self.kind = name, shape, kind
        self.size = int(np.prod(shape))
        if shape[-1] % TYPES[kind][3]:
            raise SystemExit(f"{name}: {shape[-1]} inputs are not whole blocks of {kind}")

    def n_bytes(self) -> int:
        return self.size // TYPES[self.kind][3] * TYPES[self.kind][2]

    def write(self, f: BinaryIO, rng: np.random.Generator) -> None:
        if len(self.shape) == 1:
            f.write(ENCODERS[self.kind](np.ones(self.size, dtype=np.float32)))
            return
        deviation = np.float32(1 / np.sqrt(self.shape[-1]))
        for begin in range(0, self.size, CHUNK):
            x = rng.standard_normal(min(CHUNK, self.size - begin), dtype=np.float32)
            f.write(ENCODERS[self.kind](x * deviation))


def tensors_of(a: argparse.Namespace) -> Iterator[Tensor]:
    q_width, kv_width = a.heads * a.head_dim, a.kv_heads * a.head_dim
    yield Tensor("token_embd.weight", (a.vocab, a.width), a.output_type)
    for i in range(a.layers):
        for name, shape in (("attn_norm", (a.width,)),
                            ("attn_q", (q_width, a.width)),
                            ("attn_k", (kv_width, a.width)),
                            ("attn_v", (kv_width, a.width)),
                            ("attn_output", (a.width, q_width)),
                            ("ffn_norm", (a.width,)),
                            ("ffn_gate", (a.ffn, a.width)),
                            ("ffn_up", (a.ffn, a.width)),
                            ("ffn_down", (a.width, a.ffn))):
            kind = "f32" if len(shape) == 1 else a.type
            yield Tensor(f"blk.{i}.{name}.weight", shape, kind)
    yield Tensor("output_norm.weight", (a.width,), "f32")
    if a.untied:
        yield Tensor("output.weight", (a.vocab, a.width), a.output_type)


def made_up_vocab(n: int) -> tuple[list[str], list[str]]:
    """n tokens, the last of which ends a text, and the merges."""
    tokens = byte_letters()
    if n <= len(tokens):
        raise SystemExit(f"--vocab must be more than {len(tokens)}")
    pairs = [(a, b) for a in SPACE + string.ascii_lowercase for b in string.ascii_lowercase]
    merges = [f"{a} {b}" for a, b in pairs[:n - 1 - len(tokens)]]
    tokens += [m.replace(" ", "") for m in merges]
    tokens += [f"{SPACE}word{i}" for i in range(len(tokens), n - 1)]
    return tokens + [END_OF_TEXT], merges


def metadata(a: argparse.Namespace) -> dict[str, object]:
    """int is written as u32 and float as f32."""
    tokens, merges = made_up_vocab(a.vocab)
    end = a.vocab - 1
    return {
        "general.architecture": "llama",
        "general.name": f"dummy {a.type}",
        "general.file_type": TYPES[a.type][1],
        "llama.block_count": a.layers,
        "llama.context_length": CONTEXT,
        "llama.embedding_length": a.width,
        "llama.feed_forward_length": a.ffn,
        "llama.attention.head_count": a.heads,
        "llama.attention.head_count_kv": a.kv_heads,
        "llama.attention.key_length": a.head_dim,
        "llama.attention.value_length": a.head_dim,
        "llama.attention.layer_norm_rms_epsilon": NORM_EPSILON,
        "llama.rope.dimension_count": a.head_dim,
        "llama.rope.freq_base": ROPE_THETA,
        "llama.vocab_size": a.vocab,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [NORMAL] * end + [CONTROL],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": end,
        "tokenizer.ggml.eos_token_id": end,
        "tokenizer.ggml.add_bos_token": False,
    }


def config(a: argparse.Namespace) -> dict[str, object]:
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
            "hidden_size": a.width, "num_hidden_layers": a.layers, "num_attention_heads": a.heads,
            "num_key_value_heads": a.kv_heads, "head_dim": a.head_dim, "intermediate_size": a.ffn,
            "vocab_size": a.vocab, "max_position_embeddings": CONTEXT, "rms_norm_eps": NORM_EPSILON,
            "rope_theta": ROPE_THETA, "tie_word_embeddings": not a.untied, "attention_bias": False,
            "mlp_bias": False, "bos_token_id": a.vocab - 1, "eos_token_id": a.vocab - 1,
            "torch_dtype": "bfloat16"}


# ---- the file ----

def gguf_string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def gguf_value(value: object) -> tuple[int, bytes]:
    """(id of the value's type, its bytes)"""
    if isinstance(value, bool):
        return 7, struct.pack("<?", value)
    if isinstance(value, int):
        return 4, struct.pack("<I", value)
    if isinstance(value, float):
        return 6, struct.pack("<f", value)
    if isinstance(value, str):
        return 8, gguf_string(value)
    assert isinstance(value, list)
    if value and isinstance(value[0], int):
        return 9, struct.pack("<IQ", 5, len(value)) + np.array(value, dtype="<i4").tobytes()
    return 9, struct.pack("<IQ", 8, len(value)) + b"".join(map(gguf_string, value))


def write_gguf(path: Path, fields: dict[str, object], tensors: list[Tensor], seed: int) -> None:
    rng = np.random.default_rng(seed)
    with path.open("wb") as f:
        f.write(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(fields)))
        for key, value in fields.items():
            kind, raw = gguf_value(value)
            f.write(gguf_string(key) + struct.pack("<I", kind) + raw)
        offset = 0
        for t in tensors:
            shape = t.shape[::-1]  # the innermost dimension first
            f.write(gguf_string(t.name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape))
            f.write(struct.pack("<IQ", TYPES[t.kind][0], offset))
            offset += t.n_bytes() + -t.n_bytes() % ALIGNMENT
        for t in tensors:
            f.write(b"\0" * (-f.tell() % ALIGNMENT))
            t.write(f, rng)
        f.write(b"\0" * (-f.tell() % ALIGNMENT))


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("width", 1024), ("layers", 28), ("heads", 16), ("kv-heads", 8),
                          ("head-dim", 128), ("ffn", 3072), ("vocab", 50257), ("seed", 1)):
        p.add_argument(f"--{name}", type=int, default=default)
    p.add_argument("--type", choices=list(TYPES), default="bf16")
    p.add_argument("--output-type", choices=list(TYPES), help="of the embedding and output layer")
    p.add_argument("--untied", action="store_true", help="an output layer of its own")
    p.add_argument("--out", type=Path, help="the GGUF file")
    p.add_argument("--config-dir", type=Path, help="write config.json here")
    a = p.parse_args()
    if not a.out and not a.config_dir:
        p.error("nothing to write: --out or --config-dir")
    if a.heads % a.kv_heads:
        p.error("--heads must be a multiple of --kv-heads")
    a.output_type = a.output_type or ("q8_0" if a.type == "q4_0" else a.type)
    if a.config_dir:
        a.config_dir.mkdir(parents=True, exist_ok=True)
        write_json(a.config_dir / "config.json", config(a))
    if a.out:
        tensors = list(tensors_of(a))
        write_gguf(a.out, metadata(a), tensors, a.seed)
        print(f"{a.out}: {sum(t.size for t in tensors):,} weights, "
              f"{a.out.stat().st_size / 1e9:.3f} GB")


if __name__ == "__main__":
    main()
