#!/usr/bin/env python3
"""Convert Karpathy's stories260K (llama2.c v0 .bin + tok512.bin) to Hugging Face layout.

    stories_to_hf.py OUT_DIR [--source DIR] [--dtype f32|f16|bf16] [--shards N]

The .bin (llama2.c, `legacy_export`): seven int32 (dim, hidden_dim, n_layers, n_heads, n_kv_heads,
vocab_size, negative when the classifier is not shared, seq_len), then float32 tensors, each
stacked over the layers where it belongs to one: token embedding, attention norm, wq, wk, wv, wo,
FFN norm, w1 (gate), w2 (down), w3 (up), final norm, RoPE cos and sin tables (unused here), and the
classifier if it is not shared.

llama2.c rotates interleaved pairs (2i, 2i+1); Hugging Face rotates (i, i + d/2). So the rows of wq
and wk are permuted inside each head: even rows first, then odd ones. Scores q.k do not change.

tok512.bin: u32 length of the longest piece; per token float32 score, u32 length, bytes. Spaces
stand for SentencePiece's U+2581. `\\n<s>\\n` and `\\n</s>\\n` are how llama2.c writes BOS and EOS.
"""
from __future__ import annotations

import argparse
import os
import struct
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
from hf_files import (TORCH_NAMES, Tensors, added_token, bos_template, save_weights,  # noqa: E402
                      write_json)

REPO = Path(__file__).resolve().parents[2]
BOS_ID, EOS_ID = 1, 2
SPACE = "\u2581"


class BinReader:
    def __init__(self, path: Path) -> None:
        self.data = path.read_bytes()
        self.offset = 28
        (self.dim, self.hidden, self.layers, self.heads, self.kv_heads, vocab,
         self.max_pos) = struct.unpack_from("<7i", self.data)
        self.shared_classifier = vocab > 0
        self.vocab = abs(vocab)
        self.head_dim = self.dim // self.heads

    def take(self, *shape: int) -> np.ndarray:
        n = int(np.prod(shape))
        tensor = np.frombuffer(self.data, dtype="<f4", count=n, offset=self.offset)
        self.offset += 4 * n
        return tensor.reshape(shape)


def unpair_rows(w: np.ndarray, n_heads: int) -> np.ndarray:
    """[n_heads * d, K]: interleaved RoPE pairs -> half-split, inside each head."""
    n, k = w.shape
    return w.reshape(n_heads, n // n_heads // 2, 2, k).transpose(0, 2, 1, 3).reshape(n, k)


def read_tensors(b: BinReader) -> Tensors:
    n, d, f, kv = b.layers, b.dim, b.hidden, b.kv_heads * b.head_dim
    embedding = b.take(b.vocab, d)
    norm1 = b.take(n, d)
    wq, wk, wv, wo = b.take(n, d, d), b.take(n, kv, d), b.take(n, kv, d), b.take(n, d, d)
    norm2 = b.take(n, d)
    w1, w2, w3 = b.take(n, f, d), b.take(n, d, f), b.take(n, f, d)
    norm = b.take(d)
    b.take(2, b.max_pos, b.head_dim // 2)  # RoPE tables
    out: Tensors = {"model.embed_tokens.weight": embedding}
    for i in range(n):
        p = f"model.layers.{i}."
        out[p + "input_layernorm.weight"] = norm1[i]
        out[p + "self_attn.q_proj.weight"] = unpair_rows(wq[i], b.heads)
        out[p + "self_attn.k_proj.weight"] = unpair_rows(wk[i], b.kv_heads)
        out[p + "self_attn.v_proj.weight"] = wv[i]
        out[p + "self_attn.o_proj.weight"] = wo[i]
        out[p + "post_attention_layernorm.weight"] = norm2[i]
        out[p + "mlp.gate_proj.weight"] = w1[i]
        out[p + "mlp.up_proj.weight"] = w3[i]
        out[p + "mlp.down_proj.weight"] = w2[i]
    out["model.norm.weight"] = norm
    if not b.shared_classifier:
        out["lm_head.weight"] = b.take(b.vocab, d)
    if b.offset != len(b.data):
        raise SystemExit(f"{len(b.data) - b.offset} bytes are left in the .bin: not llama2.c v0?")
    return out


def read_pieces(path: Path) -> tuple[list[str], list[float]]:
    data = path.read_bytes()
    pieces: list[str] = []
    scores: list[float] = []
    offset = 4
    while offset < len(data):
        score, length = struct.unpack_from("<fI", data, offset)
        piece = data[offset + 8:offset + 8 + length].decode("utf-8")
        offset += 8 + length
        pieces.append(piece.replace(" ", SPACE))
        scores.append(score)
    pieces[BOS_ID], pieces[EOS_ID] = "<s>", "</s>"
    return pieces, scores


def derive_merges(pieces: list[str], scores: list[float]) -> list[list[str]]:
    """As transformers.convert_slow_tokenizer: every split of a piece into two pieces, best piece
    first; within one piece by the lengths, longer left part first."""
    vocab = {piece: i for i, piece in enumerate(pieces)}
    merges: list[tuple[str, str, float]] = []
    for piece, score in zip(pieces, scores):
        splits = [(piece[:i], piece[i:], score) for i in range(1, len(piece))
                  if piece[:i] in vocab and piece[i:] in vocab]
        merges += sorted(splits, key=lambda m: (vocab[m[0]], vocab[m[1]]))
    merges.sort(key=lambda m: (m[2], len(m[0]), len(m[1])), reverse=True)
    return [[left, right] for left, right, _ in merges]


def tokenizer_json(pieces: list[str], scores: list[float]) -> dict[str, object]:
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [added_token(i, pieces[i]) for i in (0, BOS_ID, EOS_ID)],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": SPACE},
            {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}]},
        "pre_tokenizer": None,
        "post_processor": bos_template(pieces[BOS_ID], BOS_ID),
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": "<unk>",
            "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": True,
            "byte_fallback": True,
            "vocab": {piece: i for i, piece in enumerate(pieces)},
            "merges": [" ".join(m) for m in derive_merges(pieces, scores)],
        },
    }


def write_configs(out: Path, b: BinReader, dtype: str) -> None:
    write_json(out / "config.json", {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama",
        "vocab_size": b.vocab, "hidden_size": b.dim, "intermediate_size": b.hidden,
        "num_hidden_layers": b.layers, "num_attention_heads": b.heads,
        "num_key_value_heads": b.kv_heads, "hidden_act": "silu",
        "max_position_embeddings": b.max_pos, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "rope_scaling": None, "attention_bias": False, "mlp_bias": False,
        "tie_word_embeddings": b.shared_classifier, "torch_dtype": TORCH_NAMES[dtype],
        "bos_token_id": BOS_ID, "eos_token_id": EOS_ID})
    # The stories were trained one after the other with BOS between them, so the model ends a story
    # with BOS; llama2.c stops there too.
    write_json(out / "generation_config.json",
               {"bos_token_id": BOS_ID, "eos_token_id": [BOS_ID, EOS_ID], "do_sample": False})
    write_json(out / "tokenizer_config.json", {
        "tokenizer_class": "LlamaTokenizerFast", "add_bos_token": True, "add_eos_token": False,
        "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>",
        "model_max_length": b.max_pos, "clean_up_tokenization_spaces": False, "legacy": True})


def default_source() -> Path:
    shared = os.environ.get("TARN_SHARED") or str(REPO.parent / "shared")
    return Path(shared) / "data" / "model-stories260K"


def convert(source: Path, out: Path, dtype: str = "f32", n_shards: int = 1) -> None:
    b = BinReader(source / "stories260K.bin")
    tensors = read_tensors(b)
    pieces, scores = read_pieces(source / "tok512.bin")
    out.mkdir(parents=True, exist_ok=True)
    save_weights(out, tensors, dtype, n_shards)
    write_json(out / "tokenizer.json", tokenizer_json(pieces, scores))
    write_configs(out, b, dtype)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("out", type=Path)
    p.add_argument("--source", type=Path, default=default_source())
    p.add_argument("--dtype", choices=sorted(TORCH_NAMES), default="f32")
    p.add_argument("--shards", type=int, default=1)
    args = p.parse_args()
    if not (args.source / "stories260K.bin").exists():
        raise SystemExit(f"{args.source}/stories260K.bin is missing: give --source")
    convert(args.source, args.out, args.dtype, args.shards)


if __name__ == "__main__":
    main()
