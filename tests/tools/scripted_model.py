#!/usr/bin/env python3
"""Models that say a script: each token has one successor, whatever stands before it.

    scripted_model.py DIR SCRIPT_FILE [--special TEXT ...] [--end TEXT ...]

writes a Llama model in Hugging Face layout whose greedy answer to any chat is the content of the
file. The embeddings are unit vectors, all layers add zeros, and the output layer's row of a token
has its weights at the tokens before it. So each token occurs once in the scripts: a special token
where it stands first, and elsewhere plain pieces of its text; all other text in pieces of a few
bytes, which may end inside of a character.
"""
from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
from hf_files import added_token, save_weights, write_json  # noqa: E402
from make_tiny_model import byte_letters  # noqa: E402

LENGTHS = (3, 2, 4, 1, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16)
HEAD = 64
DONE = "<|done|>"
# The last message chooses the script.
TEMPLATE = ("{% for t in tools or [] %}{{ t | tojson }}{% endfor %}"
            "{% for m in messages %}{{ m.content }}{% endfor %}")


def cut_plain(text: bytes, used: set[bytes]) -> list[bytes] | None:
    """Cut the text into pieces that are not used; they are then. None: there is no such cut."""
    lengths: list[int] = []
    at = 0
    start = 0  # of LENGTHS: where to go on after a step back
    while at < len(text):
        for k in range(start, len(LENGTHS)):
            piece = text[at:at + LENGTHS[k]]
            if len(piece) == LENGTHS[k] and piece not in used:
                used.add(piece)
                lengths.append(k)
                at += len(piece)
                start = 0
                break
        else:
            if not lengths:
                return None
            start = lengths.pop()
            at -= LENGTHS[start]
            used.remove(text[at:at + LENGTHS[start]])
            start += 1
    pieces, at = [], 0
    for k in lengths:
        pieces.append(text[at:at + LENGTHS[k]])
        at += LENGTHS[k]
    return pieces


class Vocabulary:
    def __init__(self, specials: list[str]) -> None:
        self.letters = byte_letters()
        self.specials = specials
        self.used = {s.encode() for s in specials}
        self.used_specials: set[str] = set()
        self.next: dict[str | bytes, str | bytes] = {}

    def add(self, begin: str, script: str, end: str) -> None:
        last: str | bytes = begin
        known = "|".join(re.escape(s) for s in sorted(self.specials, key=len, reverse=True))
        plain = ""  # could not be cut without the part behind it
        for part in re.split(f"({known})", script) if known else [script]:
            pieces: list[str] | list[bytes] | None
            if part in self.specials and part not in self.used_specials and not plain:
                self.used_specials.add(part)
                pieces = [part]
            else:
                pieces = cut_plain((plain + part).encode(), self.used)
            plain = plain + part if pieces is None else ""
            for piece in pieces or []:
                self.next[last] = piece
                last = piece
        if plain:
            raise SystemExit(f"no unique pieces of {plain!r}")
        self.next[last] = end

    def name(self, piece: bytes) -> str:
        return "".join(self.letters[byte] for byte in piece)


def make(out: Path, scripts: dict[str, str], specials: list[str], ends: list[str]) -> None:
    """scripts: from the content of a chat's last message to the answer; "" stands for all others.
    An answer that does not end with one of `ends`, which are special, ends with a token of its
    own."""
    begins = {name: f"<|go:{name}|>" for name in scripts}
    v = Vocabulary([*specials, *ends])
    for name, script in scripts.items():
        end = next((e for e in ends if script.endswith(e)), DONE)
        v.add(begins[name], script.removesuffix(end), end)
    pieces = [bytes([i]) for i in range(256)] + sorted(
        p for p in v.used if len(p) > 1 and p.decode(errors="replace") not in v.specials)
    added = [*begins.values(), *v.specials, DONE]
    ids: dict[str | bytes, int] = {p: i for i, p in enumerate([*pieces, *added])}
    n = len(ids)
    dim = (n + HEAD - 1) // HEAD * HEAD
    head = np.zeros((n, dim), np.float32)
    for i, token in enumerate(ids):
        head[ids[v.next.get(token, DONE)], i] = 1
    p = "model.layers.0."
    zeros = {f"{p}self_attn.{name}_proj.weight": (HEAD, dim) for name in "qkv"}
    zeros |= {f"{p}self_attn.o_proj.weight": (dim, HEAD), f"{p}mlp.gate_proj.weight": (HEAD, dim),
              f"{p}mlp.up_proj.weight": (HEAD, dim), f"{p}mlp.down_proj.weight": (dim, HEAD)}
    ones = ("model.norm.weight", p + "input_layernorm.weight",
            p + "post_attention_layernorm.weight")
    out.mkdir(parents=True)
    save_weights(out, {
        "model.embed_tokens.weight": np.eye(n, dim, dtype=np.float32), "lm_head.weight": head,
        **{name: np.zeros(shape, np.float32) for name, shape in zeros.items()},
        **{name: np.ones(dim, np.float32) for name in ones}}, "bf16")
    write_json(out / "config.json", {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": dim,
        "intermediate_size": HEAD, "num_hidden_layers": 1, "num_attention_heads": 1,
        "num_key_value_heads": 1, "head_dim": HEAD, "vocab_size": n, "rms_norm_eps": 1e-6,
        "max_position_embeddings": 4096, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
        "eos_token_id": [ids[token] for token in [DONE, *ends]]})
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                  "use_regex": False}
    write_json(out / "tokenizer.json", {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [added_token(ids[name], name) for name in added], "normalizer": None,
        "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "fuse_unk": False,
                  "byte_fallback": False, "merges": [],
                  "vocab": {v.name(p): ids[p] for p in pieces}}})
    choose = "".join(f"{{% if messages[-1].content == '{name}' %}}{begin}{{% else %}}"
                     for name, begin in begins.items() if name)
    choose += begins.get("", DONE) + "{% endif %}" * sum(1 for name in begins if name)
    write_json(out / "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE + choose})


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("out", type=Path, metavar="DIR")
    p.add_argument("script", type=Path, metavar="SCRIPT_FILE")
    p.add_argument("--special", action="append", default=[])
    p.add_argument("--end", action="append", default=[])
    a = p.parse_args()
    make(a.out, {"": a.script.read_text()}, a.special, a.end)


if __name__ == "__main__":
    main()
