#!/usr/bin/env python3
"""Make a random Llama model in Hugging Face layout: weights, byte-level BPE, chat template.

    make_tiny_model.py DIR [--layers 2 --dim 64 --heads 4 --kv-heads 2 --head-dim 16 --ffn 128
                            --vocab 512 --tied --dtype f32 --seed 1 --max-pos 2048
                            --rope-theta 10000 --rope-scaling linear:4 --bias --shards 1
                            --no-tokenizer]

The same arguments give the same bytes. Weights are scaled so that errors are visible in tests:
hidden states stay near unit size, attention is not flat, and logits have a deviation of about 3.
The tokenizer has the 256 bytes, some merges and five special tokens at the end. Ids between its
size and --vocab exist in the model only, as in many real models.
"""
from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
from hf_files import (TORCH_NAMES, Tensors, added_token, bos_template, save_weights,  # noqa: E402
                      write_json)

SPECIALS = ["<|bos|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
N_MERGES_MAX = 200
LOGIT_DEVIATION = 3.0
# Llama 3's pattern: most models of today split like this or nearly so.
SPLIT_PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
                 r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
CHAT_TEMPLATE = ("{{ bos_token }}{% for message in messages %}"
                 "{{ '<|' + message['role'] + '|>\\n' + message['content'] + '<|end|>\\n' }}"
                 "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}")
# Merges are learned from this.
CORPUS = """the server answers the question with the documents and streams the tokens to the client
a request waits in the queue until the engine runs its prompt and then one token after the other
what was computed once for any request is kept in the cache and read again when it is needed
where is the red house and who lives there with the old dog that is not in the garden
once upon a time there was a little girl who had a big box and wanted to open it for her mother
"""


class Shape:
    """Sizes from the command line; head_dim 0 means dim / heads."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.dim, self.ffn, self.vocab, self.layers = args.dim, args.ffn, args.vocab, args.layers
        self.heads = args.heads
        self.kv_heads = args.kv_heads or args.heads
        self.head_dim = args.head_dim or args.dim // args.heads
        if self.heads % self.kv_heads:
            raise SystemExit("--heads must be a multiple of --kv-heads")
        if self.head_dim % 2:
            raise SystemExit("--head-dim must be even")


def random_weights(s: Shape, seed: int, tied: bool, bias: bool) -> Tensors:
    rng = np.random.default_rng(seed)

    def matrix(n: int, k: int, gain: float = 1.0) -> np.ndarray:
        return rng.standard_normal((n, k), dtype=np.float32) * np.float32(gain / np.sqrt(k))

    def norm() -> np.ndarray:
        return np.exp(0.2 * rng.standard_normal(s.dim, dtype=np.float32))

    def linear(name: str, n: int, k: int, gain: float, with_bias: bool) -> None:
        out[name + ".weight"] = matrix(n, k, gain)
        if with_bias:
            out[name + ".bias"] = 0.3 * rng.standard_normal(n, dtype=np.float32)

    q_rows, kv_rows = s.heads * s.head_dim, s.kv_heads * s.head_dim
    residual = 1.0 / np.sqrt(2 * s.layers)  # keeps the residual stream near unit size
    out: Tensors = {}
    # A tied table also makes the logits, so its size fixes their spread.
    out["model.embed_tokens.weight"] = matrix(s.vocab, s.dim,
                                              LOGIT_DEVIATION if tied else np.sqrt(s.dim))
    for i in range(s.layers):
        p = f"model.layers.{i}."
        out[p + "input_layernorm.weight"] = norm()
        linear(p + "self_attn.q_proj", q_rows, s.dim, 1.4, bias)
        linear(p + "self_attn.k_proj", kv_rows, s.dim, 1.4, bias)
        linear(p + "self_attn.v_proj", kv_rows, s.dim, 1.5, bias)
        linear(p + "self_attn.o_proj", s.dim, q_rows, 2 * residual, bias)
        out[p + "post_attention_layernorm.weight"] = norm()
        linear(p + "mlp.gate_proj", s.ffn, s.dim, 1.5, bias)
        linear(p + "mlp.up_proj", s.ffn, s.dim, 1.5, bias)
        linear(p + "mlp.down_proj", s.dim, s.ffn, residual, bias)
    out["model.norm.weight"] = norm()
    if not tied:
        out["lm_head.weight"] = matrix(s.vocab, s.dim, LOGIT_DEVIATION)
    return out


def byte_letters() -> list[str]:
    """GPT-2's letter for each byte: printable ones stand for themselves, the rest from U+0100."""
    letters: list[str] = []
    n_moved = 0
    for byte in range(256):
        if 33 <= byte <= 126 or 161 <= byte <= 172 or byte >= 174:
            letters.append(chr(byte))
        else:
            letters.append(chr(256 + n_moved))
            n_moved += 1
    return letters


def corpus_words(letters: list[str]) -> Counter[tuple[str, ...]]:
    words: Counter[tuple[str, ...]] = Counter()
    for line in CORPUS.splitlines():
        for i, word in enumerate(line.split(" ")):
            text = (" " if i else "") + word
            words[tuple(letters[byte] for byte in text.encode())] += 1
    return words


def merge_word(word: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    out: list[str] = []
    i = 0
    while i < len(word):
        if word[i:i + 2] == pair:
            out.append(pair[0] + pair[1])
            i += 2
        else:
            out.append(word[i])
            i += 1
    return tuple(out)


def learn_merges(letters: list[str], n_merges: int) -> list[tuple[str, str]]:
    """Plain BPE: the most frequent pair, ties to the lesser one, again and again."""
    words = corpus_words(letters)
    merges: list[tuple[str, str]] = []
    while len(merges) < n_merges:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, count in words.items():
            for pair in zip(word, word[1:]):
                pairs[pair] += count
        if not pairs:
            break
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        merged: Counter[tuple[str, ...]] = Counter()
        for word, count in words.items():
            merged[merge_word(word, best)] += count
        words = merged
    return merges


def tokenizer_json(vocab_rows: int) -> tuple[dict[str, object], dict[str, int]]:
    """The tokenizer and the ids of the special tokens."""
    letters = byte_letters()
    room = vocab_rows - len(letters) - len(SPECIALS)
    if room < 0:
        raise SystemExit("--vocab must be at least 261, or give --no-tokenizer")
    merges = learn_merges(letters, min(room, N_MERGES_MAX))
    vocab: dict[str, int] = {}
    for piece in letters + [left + right for left, right in merges]:
        vocab.setdefault(piece, len(vocab))
    specials = {name: len(vocab) + i for i, name in enumerate(SPECIALS)}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                  "use_regex": False}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [added_token(i, name) for name, i in specials.items()],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": SPLIT_PATTERN}, "behavior": "Isolated",
             "invert": False}, byte_level]},
        "post_processor": bos_template("<|bos|>", specials["<|bos|>"]),
        "decoder": dict(byte_level, add_prefix_space=True, use_regex=True),
        "model": {"type": "BPE", "dropout": None, "unk_token": None,
                  "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": vocab, "merges": [" ".join(pair) for pair in merges]},
    }
    return tokenizer, specials


def rope_scaling(text: str | None) -> dict[str, object] | None:
    """linear:FACTOR or llama3:FACTOR:LOW:HIGH:ORIGINAL_LENGTH"""
    if not text:
        return None
    kind, *numbers = text.split(":")
    if kind == "linear" and len(numbers) == 1:
        return {"rope_type": "linear", "factor": float(numbers[0])}
    if kind == "llama3" and len(numbers) == 4:
        return {"rope_type": "llama3", "factor": float(numbers[0]),
                "low_freq_factor": float(numbers[1]), "high_freq_factor": float(numbers[2]),
                "original_max_position_embeddings": int(numbers[3])}
    raise SystemExit(f"--rope-scaling {text}: linear:FACTOR or llama3:FACTOR:LOW:HIGH:LENGTH")


def model_config(args: argparse.Namespace, s: Shape, bos: int, eos: int) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama",
        "vocab_size": s.vocab, "hidden_size": s.dim, "intermediate_size": s.ffn,
        "num_hidden_layers": s.layers, "num_attention_heads": s.heads,
        "num_key_value_heads": s.kv_heads, "head_dim": s.head_dim, "hidden_act": "silu",
        "max_position_embeddings": args.max_pos, "rms_norm_eps": 1e-5,
        "rope_theta": args.rope_theta, "rope_scaling": rope_scaling(args.rope_scaling),
        "attention_bias": args.bias, "mlp_bias": args.bias, "tie_word_embeddings": args.tied,
        "torch_dtype": TORCH_NAMES[args.dtype], "bos_token_id": bos, "eos_token_id": eos}


def write_tokenizer(out: Path, tokenizer: dict[str, object], max_pos: int) -> None:
    write_json(out / "tokenizer.json", tokenizer)
    write_json(out / "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|bos|>",
        "eos_token": "<|end|>", "model_max_length": max_pos,
        "clean_up_tokenization_spaces": False, "chat_template": CHAT_TEMPLATE})


def make(args: argparse.Namespace) -> None:
    s = Shape(args)
    out: Path = args.out
    out.mkdir(parents=True, exist_ok=True)
    bos, eos = 0, 1
    if not args.no_tokenizer:
        tokenizer, specials = tokenizer_json(s.vocab)
        bos, eos = specials["<|bos|>"], specials["<|end|>"]
        write_tokenizer(out, tokenizer, args.max_pos)
    save_weights(out, random_weights(s, args.seed, args.tied, args.bias), args.dtype, args.shards)
    write_json(out / "config.json", model_config(args, s, bos, eos))
    write_json(out / "generation_config.json",
               {"bos_token_id": bos, "eos_token_id": eos, "do_sample": False})


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("out", type=Path, metavar="DIR")
    p.add_argument("--layers", type=int, default=2)
    p.add_argument("--dim", type=int, default=64)
    p.add_argument("--heads", type=int, default=4)
    p.add_argument("--kv-heads", type=int, default=0, help="default: as --heads")
    p.add_argument("--head-dim", type=int, default=0, help="default: dim / heads")
    p.add_argument("--ffn", type=int, default=128)
    p.add_argument("--vocab", type=int, default=512)
    p.add_argument("--tied", action="store_true", help="lm_head is the embedding table")
    p.add_argument("--bias", action="store_true", help="attention_bias and mlp_bias")
    p.add_argument("--dtype", choices=sorted(TORCH_NAMES), default="f32")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--max-pos", type=int, default=2048)
    p.add_argument("--rope-theta", type=float, default=10000.0)
    p.add_argument("--rope-scaling", help="linear:FACTOR or llama3:FACTOR:LOW:HIGH:LENGTH")
    p.add_argument("--shards", type=int, default=1)
    p.add_argument("--no-tokenizer", action="store_true")
    return p


def main() -> None:
    make(parser().parse_args())


if __name__ == "__main__":
    main()
