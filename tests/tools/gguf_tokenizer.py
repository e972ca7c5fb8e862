#!/usr/bin/env python3
"""The metadata "tokenizer.*" of a GGUF file from a directory with tokenizer.json, as llama.cpp's
converter writes them, and a GGUF file of these metadata alone.

usage: gguf_tokenizer.py DIR OUT.gguf [--pre NAME] [--arch NAME]

As a module: tokenizer_fields(DIR) returns {key: value}; write_metadata(FILE, fields) writes them.
Values are str, bool, int (u32), float (f32), bytes (an array of u8), and lists of str, int (i32)
or float (f32). Python standard library only."""

import argparse
import base64
import json
import struct
import sys
from pathlib import Path

META = "\u2581"
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)
KEY = "tokenizer.ggml."


# ---- writing ----

def text_bytes(text):
    raw = text.encode("utf-8")
    return struct.pack("<Q", len(raw)) + raw


def value_bytes(value):
    """(type, bytes) of one value."""
    if isinstance(value, bool):
        return 7, struct.pack("<?", value)
    if isinstance(value, int):
        return 4, struct.pack("<I", value)
    if isinstance(value, float):
        return 6, struct.pack("<f", value)
    if isinstance(value, str):
        return 8, text_bytes(value)
    if isinstance(value, bytes):
        return 9, struct.pack("<IQ", 0, len(value)) + value
    head = struct.pack("<Q", len(value))
    if not value or isinstance(value[0], str):
        return 9, struct.pack("<I", 8) + head + b"".join(map(text_bytes, value))
    if isinstance(value[0], int):
        return 9, struct.pack("<I", 5) + head + struct.pack(f"<{len(value)}i", *value)
    return 9, struct.pack("<I", 6) + head + struct.pack(f"<{len(value)}f", *value)


def write_metadata(path, fields):
    with open(path, "wb") as f:
        f.write(b"GGUF" + struct.pack("<IQQ", 3, 0, len(fields)))
        for key, value in fields.items():
            kind, raw = value_bytes(value)
            f.write(text_bytes(key) + struct.pack("<I", kind) + raw)
        f.write(bytes(-f.tell() % 32))


# ---- reading tokenizer.json ----

def steps_of(node, key):
    """The steps of a normalizer, pre-tokenizer, decoder or post-processor, without sequences."""
    if not node:
        return []
    if node["type"] == "Sequence":
        return [step for part in node[key] for step in steps_of(part, key)]
    return [node]


def pre_name(model, normalizers, pre):
    """The name of the pre-tokenizer, from what tokenizer.json says."""
    kinds = [step["type"] for step in pre]
    nfc = any(step["type"] == "NFC" for step in normalizers)
    if kinds == ["ByteLevel"]:
        return "gpt-neox" if nfc else "gpt-2"
    if kinds == ["Digits", "ByteLevel"]:
        return "command-r" if nfc else "starcoder"
    if kinds[0] == "Punctuation":
        return "falcon"
    pattern = pre[0].get("pattern", {}).get("Regex", "")
    if r"\p{Lu}" in pattern:
        return "gpt-4o" if "'ll" in pattern else "tekken"
    if r"\p{N}{1,3}" in pattern:
        return "llama-bpe" if model.get("ignore_merges") else "dbrx"
    if r"|\p{N}|" in pattern:
        return "qwen2" if nfc else "megrez"
    sys.exit(f"no name for the pre-tokenizer {pre}: use --pre")


def scores_of_merges(tokens, merges):
    """Scores that order the joined tokens as the merges do: minus the first merge that makes it."""
    first = {}
    for i, merge in enumerate(merges):
        first.setdefault("".join(merge), i)
    return [-float(first[t]) if t in first else 0.0 for t in tokens]


def read_tokens(doc, model):
    """(tokens, types): ids without a token are filled up as the converter does."""
    vocab = model["vocab"]
    pieces = {v: k for k, v in vocab.items()} if isinstance(vocab, dict) else {
        i: piece for i, (piece, _) in enumerate(vocab)}
    types = {i: BYTE if len(p) == 6 and p.startswith("<0x") and p.endswith(">") else NORMAL
             for i, p in pieces.items()}
    for added in doc.get("added_tokens") or []:
        pieces[added["id"]] = added["content"]
        types[added["id"]] = CONTROL if added["special"] else USER
    unk = model.get("unk_token")
    if isinstance(vocab, dict) and unk in vocab:
        types[vocab[unk]] = UNKNOWN
    elif model.get("unk_id") is not None:
        types[model["unk_id"]] = UNKNOWN
    n = max(pieces) + 1
    return ([pieces.get(i, f"[PAD{i}]") for i in range(n)],
            [types.get(i, UNUSED) for i in range(n)])


def wordpiece_names(tokens, types):
    """Pieces that begin a word get U+2581, the others lose their prefix."""
    def name(token, kind):
        if kind in (CONTROL, UNKNOWN) or (token.startswith("[") and token.endswith("]")):
            return token
        return token[2:] if token.startswith("##") else META + token

    return [name(t, k) for t, k in zip(tokens, types)]


def model_fields(doc, tokens, types, pre):
    """The fields that depend on the kind of model."""
    model = doc["model"]
    normalizers = steps_of(doc.get("normalizer"), "normalizers")
    pretokenizers = steps_of(doc.get("pre_tokenizer"), "pretokenizers")
    kind = model.get("type") or ("Unigram" if isinstance(model["vocab"], list) else "BPE")
    prepends = any(s["type"] == "Prepend" for s in normalizers) or any(
        s["type"] == "Metaspace" and s.get("prepend_scheme", "always") != "never"
        for s in pretokenizers)
    if kind == "WordPiece":
        bert = next(s for s in normalizers if s["type"] == "BertNormalizer")
        return {KEY + "model": "bert", KEY + "tokens": wordpiece_names(tokens, types),
                KEY + "normalizer.lowercase": bert["lowercase"]}
    if kind == "Unigram":
        maps = [s["precompiled_charsmap"] for s in normalizers if s["type"] == "Precompiled"]
        fields = {KEY + "model": "t5", KEY + "tokens": tokens,
                  KEY + "scores": [float(score) for _, score in model["vocab"]],
                  KEY + "add_space_prefix": prepends,
                  KEY + "remove_extra_whitespaces": any(s["type"] == "Strip" for s in normalizers)}
        return fields | ({KEY + "precompiled_charsmap": base64.b64decode(maps[0])} if maps else {})
    merges = [m.split(" ") if isinstance(m, str) else m for m in model["merges"]]
    if model.get("byte_fallback"):
        return {KEY + "model": "llama", KEY + "pre": "default", KEY + "tokens": tokens,
                KEY + "scores": scores_of_merges(tokens, merges),
                KEY + "add_space_prefix": prepends}
    return {KEY + "model": "gpt2", KEY + "pre": pre or pre_name(model, normalizers, pretokenizers),
            KEY + "tokens": tokens, KEY + "merges": [" ".join(m) for m in merges]}


def special_fields(doc, config, tokens):
    """Ids of special tokens, and which of them are added to a text."""
    ids = {t: i for i, t in enumerate(tokens)}
    fields = {}
    for key, name in (("bos", "bos_token"), ("eos", "eos_token"), ("unknown", "unk_token"),
                      ("seperator", "sep_token"), ("cls", "cls_token"), ("padding", "pad_token")):
        token = config.get(name)
        token = token["content"] if isinstance(token, dict) else token
        if token in ids:
            fields[f"{KEY}{key}_token_id"] = ids[token]
    before, after = [], []
    for step in steps_of(doc.get("post_processor"), "processors"):
        seen = False
        for part in step.get("single", []) if step["type"] == "TemplateProcessing" else []:
            if "Sequence" in part:
                seen = True
            else:
                (after if seen else before).append(part["SpecialToken"]["id"])
    fields[KEY + "add_bos_token"] = bool(before)
    fields[KEY + "add_eos_token"] = bool(after)
    for key, names in (("bos", before), ("eos", after)):
        if names and names[0] in ids:
            fields.setdefault(f"{KEY}{key}_token_id", ids[names[0]])
    for key, name in (("eot", "<|im_end|>"), ("eot", "<|eot_id|>"), ("eom", "<|eom_id|>")):
        if name in ids:
            fields[f"{KEY}{key}_token_id"] = ids[name]
    return fields


def chat_template(directory, config):
    path = directory / "chat_template.jinja"
    if path.exists():
        return path.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):
        named = {t["name"]: t["template"] for t in template}
        return named.get("default", template[0]["template"])
    return template


def tokenizer_fields(directory, pre=None):
    """All keys "tokenizer.*" of a directory with tokenizer.json. `pre`: tokenizer.ggml.pre, where
    it cannot be seen in the file."""
    directory = Path(directory)
    doc = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))
    config_path = directory / "tokenizer_config.json"
    config = json.loads(config_path.read_text(encoding="utf-8")) if config_path.exists() else {}
    tokens, types = read_tokens(doc, doc["model"])
    fields = model_fields(doc, tokens, types, pre)
    fields[KEY + "token_type"] = types
    unk = types.index(UNKNOWN) if UNKNOWN in types else None
    if unk is not None:
        fields[KEY + "unknown_token_id"] = unk
    special = special_fields(doc, config, tokens)
    if fields[KEY + "model"] == "bert":
        ids = {t: i for i, t in enumerate(tokens)}
        special[KEY + "bos_token_id"] = ids.get("[CLS]", 0)
        special[KEY + "seperator_token_id"] = ids.get("[SEP]", 0)
        special.pop(KEY + "add_eos_token")
        special.pop(KEY + "eos_token_id", None)
    fields |= special
    template = chat_template(directory, config)
    return fields | ({"tokenizer.chat_template": template} if template else {})


def main():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("directory", type=Path)
    p.add_argument("out", type=Path)
    p.add_argument("--pre", help="tokenizer.ggml.pre, instead of what tokenizer.json says")
    p.add_argument("--arch", default="llama", help="general.architecture")
    a = p.parse_args()
    write_metadata(a.out, {"general.architecture": a.arch} | tokenizer_fields(a.directory, a.pre))


if __name__ == "__main__":
    main()
