#!/usr/bin/env python3
"""Make a directory with tokenizer.json and tokenizer_config.json, as Hugging Face writes them,
from other forms of a vocabulary, so that tests can load real ones:

  X.gguf          llama.cpp vocabulary; the pre-tokenizer goes by tokenizer.ggml.pre
  merges.txt      byte-level BPE without a vocab.json (ids as tok-qwen2 in shared data describes)
  encoder.json    with vocab.bpe beside it (GPT-2)
  X.bin           llama2.c tokenizer (tok512.bin)
  X.model*        SentencePiece model of type BPE or Unigram

usage: gguf_vocab_to_hf.py INPUT OUTDIR [--family NAME] [--metaspace] [--pair-merges]

Python standard library only. The pre-tokenizer of each family is that of the models' own
tokenizer.json files."""

import argparse
import base64
import json
import os
import struct
import sys

META = "\u2581"

QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")
LLAMA3 = QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")


def byte_level(use_regex=True):
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
            "use_regex": use_regex}


def split(pattern):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def sequence(*steps):
    return {"type": "Sequence", "pretokenizers": list(steps)}


# family -> (normalizer, pre_tokenizer)
BYTE_LEVEL = {
    "gpt-2": (None, byte_level()),
    "gpt-neox": ({"type": "NFC"}, byte_level()),
    "qwen2": ({"type": "NFC"}, sequence(split(QWEN2), byte_level(False))),
    "llama-bpe": (None, sequence(split(LLAMA3), byte_level(False))),
    "starcoder": (None, sequence({"type": "Digits", "individual_digits": True}, byte_level())),
    "falcon": (None, sequence({"type": "Punctuation", "behavior": "Contiguous"}, byte_level(),
                              {"type": "Digits", "individual_digits": False},
                              split("[0-9][0-9][0-9]"))),
}


class Vocab:
    """A vocabulary, read from any of the input forms."""

    def __init__(self, family):
        self.family = family
        self.tokens = []  # str by id
        self.merges = []  # (left, right)
        self.added = []   # (id, special)
        self.unk = self.bos = self.eos = None  # ids
        self.add_bos = False
        self.scores = None    # of a Unigram model
        self.charsmap = b""   # SentencePiece's normalization


# ---- readers ----

class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, fmt):
        (v,) = struct.unpack_from("<" + fmt, self.data, self.at)
        self.at += struct.calcsize("<" + fmt)
        return v

    def bytes(self, n):
        v = self.data[self.at:self.at + n]
        self.at += n
        return v


GGUF_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q",
                12: "d"}


def gguf_value(r, kind):
    if kind == 8:
        return r.bytes(r.take("Q")).decode("utf-8")
    if kind == 9:
        item, n = r.take("I"), r.take("Q")
        return [gguf_value(r, item) for _ in range(n)]
    return r.take(GGUF_SCALARS[kind])


def read_gguf_fields(path):
    with open(path, "rb") as f:
        r = Reader(f.read())
    if r.bytes(4) != b"GGUF":
        sys.exit(f"{path}: not a GGUF file")
    r.take("I")
    r.take("Q")
    fields = {}
    for _ in range(r.take("Q")):
        key = r.bytes(r.take("Q")).decode("utf-8")
        fields[key] = gguf_value(r, r.take("I"))
    return fields


def read_gguf(path, family):
    f = read_gguf_fields(path)
    key = "tokenizer.ggml."
    spm = f[key + "model"] == "llama"
    pre = "gpt-neox" if f["general.architecture"] == "gptneox" else f.get(key + "pre")
    v = Vocab(family or ("llama-spm" if spm else pre))
    v.tokens = f[key + "tokens"]
    kinds = f[key + "token_type"]
    # 2 unknown, 3 control, 4 user-defined; [PADnnn] only fills the table up.
    v.added = [(i, k != 4) for i, k in enumerate(kinds)
               if k in (2, 3, 4) and not v.tokens[i].startswith("[PAD")]
    v.unk = f.get(key + "unknown_token_id") if spm else None
    v.bos, v.eos = f.get(key + "bos_token_id"), f.get(key + "eos_token_id")
    v.add_bos = bool(f.get(key + "add_bos_token", spm))
    if spm:
        v.merges = merges_from_scores(v.tokens, f[key + "scores"], kinds)
    else:
        v.merges = [tuple(m.split(" ")) for m in f[key + "merges"]]
    return v


def merges_from_scores(tokens, scores, kinds):
    """Every way to cut a piece into two pieces is a merge, ordered by the piece's score: what
    Hugging Face's converter of SentencePiece models does."""
    ids = {t: i for i, t in enumerate(tokens)}
    merges = []
    for token, score, kind in zip(tokens, scores, kinds):
        if kind in (2, 3, 6):
            continue
        local = [(token[:i], token[i:], score) for i in range(1, len(token))
                 if token[:i] in ids and token[i:] in ids]
        merges += sorted(local, key=lambda m: (ids[m[0]], ids[m[1]]))
    merges.sort(key=lambda m: (m[2], len(m[0]), len(m[1])), reverse=True)
    return [(a, b) for a, b, _ in merges]


def byte_letters():
    """Byte-level letters in id order: printable bytes first, then the rest."""
    own = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
    rest = [b for b in range(256) if b not in own]
    return [chr(b) for b in own] + [chr(256 + i) for i in range(len(rest))]


def read_merges_txt(path, family):
    v = Vocab(family or "qwen2")
    v.tokens = byte_letters()
    with open(path, encoding="utf-8") as f:
        for line in f.read().split("\n"):
            if line and not line.startswith("#version"):
                v.merges.append(tuple(line.split(" ")))
    v.tokens += [a + b for a, b in v.merges]
    if v.family == "qwen2":
        assert len(v.tokens) == 151643, len(v.tokens)
        v.tokens += ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
        v.added = [(i, True) for i in range(151643, 151646)]
        v.eos = 151645
    return v


def read_gpt2(path, family):
    v = Vocab(family or "gpt-2")
    with open(path, encoding="utf-8") as f:
        ids = json.load(f)
    v.tokens = sorted(ids, key=ids.get)
    with open(os.path.join(os.path.dirname(path), "vocab.bpe"), encoding="utf-8") as f:
        v.merges = [tuple(x.split(" ")) for x in f.read().split("\n")[1:] if x]
    v.bos = v.eos = ids["<|endoftext|>"]
    v.added = [(v.eos, True)]
    return v


def set_spm(v, scores, kinds):
    v.merges = merges_from_scores(v.tokens, scores, kinds)
    v.unk, v.bos, v.eos, v.add_bos = 0, 1, 2, True
    v.added = [(i, k != 4) for i, k in enumerate(kinds) if k in (2, 3, 4)]
    return v


def read_llama2c(path, family):
    with open(path, "rb") as f:
        r = Reader(f.read())
    r.take("I")
    v = Vocab(family or "llama-spm")
    scores, kinds = [], []
    while r.at < len(r.data):
        scores.append(r.take("f"))
        text = r.bytes(r.take("I")).decode("utf-8")
        i = len(v.tokens)
        # The first three are written for display; ids 0, 1, 2 are unk, bos, eos in any Llama.
        v.tokens.append(("<unk>", "<s>", "</s>")[i] if i < 3 else text.replace(" ", META))
        kinds.append((2, 3, 3)[i] if i < 3 else 6 if len(text) == 6 and text[:3] == "<0x" else 1)
    return set_spm(v, scores, kinds)


def protobuf_fields(data):
    """(number, value) of one message; bytes for length-delimited, float or int otherwise."""
    def varint(at):
        value = shift = 0
        while True:
            b = data[at]
            value |= (b & 127) << shift
            at, shift = at + 1, shift + 7
            if b < 128:
                return value, at

    at = 0
    while at < len(data):
        tag, at = varint(at)
        if tag & 7 == 0:
            value, at = varint(at)
        elif tag & 7 == 2:
            n, at = varint(at)
            value, at = data[at:at + n], at + n
        elif tag & 7 == 5:
            value, at = struct.unpack_from("<f", data, at)[0], at + 4
        else:
            value, at = data[at:at + 8], at + 8
        yield tag >> 3, value


def read_sentencepiece(path, family):
    with open(path, "rb") as f:
        data = f.read()
    v = Vocab(family or "llama-spm")
    scores, kinds, model_type = [], [], 1
    for number, value in protobuf_fields(data):
        if number == 1:
            piece = dict(protobuf_fields(value))
            v.tokens.append(piece[1].decode("utf-8"))
            scores.append(piece.get(2, 0.0))
            kinds.append(piece.get(3, 1))
        elif number == 2:
            model_type = dict(protobuf_fields(value)).get(3, 1)
        elif number == 3:
            v.charsmap = dict(protobuf_fields(value)).get(2, b"")
    if model_type == 1:
        return set_unigram(v, scores, kinds)
    if model_type != 2:
        sys.exit(f"{path}: a SentencePiece model of type {model_type}; only Unigram (1) "
                 "and BPE (2) are converted")
    return set_spm(v, scores, kinds)


def set_unigram(v, scores, kinds):
    v.family, v.scores = "unigram", scores
    v.unk = kinds.index(2)
    v.eos = v.tokens.index("</s>")
    v.added = [(i, k != 4) for i, k in enumerate(kinds) if k in (2, 3, 4)]
    return v


# ---- writer ----

def added_token(v, i, special):
    return {"id": i, "content": v.tokens[i], "single_word": False, "lstrip": False,
            "rstrip": False, "normalized": not special, "special": special}


def spm_parts(v, metaspace):
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": META}
    normalizer = {"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": META}, replace]}
    decoder = {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": META}, "content": " "},
        {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    pre = None
    if metaspace:
        normalizer = None
        pre = {"type": "Metaspace", "replacement": META, "prepend_scheme": "first", "split": False}
    return normalizer, pre, decoder


def template(v):
    bos = v.tokens[v.bos]
    special = {"SpecialToken": {"id": bos, "type_id": 0}}
    return {"type": "TemplateProcessing",
            "single": [special, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [special, {"Sequence": {"id": "A", "type_id": 0}},
                     {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {bos: {"id": bos, "ids": [v.bos], "tokens": [bos]}}}


def unigram_json(v):
    """As Hugging Face converts T5."""
    meta = {"type": "Metaspace", "replacement": META, "prepend_scheme": "always", "split": True}
    eos = v.tokens[v.eos]
    special = {"SpecialToken": {"id": eos, "type_id": 0}}
    steps = [{"type": "Strip", "strip_left": False, "strip_right": True},
             {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": META}]
    if v.charsmap:
        steps.insert(0, {"type": "Precompiled",
                         "precompiled_charsmap": base64.b64encode(v.charsmap).decode()})
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [added_token(v, i, special) for i, special in v.added],
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": meta,
        "post_processor": {"type": "TemplateProcessing",
                           "single": [{"Sequence": {"id": "A", "type_id": 0}}, special],
                           "pair": [{"Sequence": {"id": "A", "type_id": 0}}, special,
                                    {"Sequence": {"id": "B", "type_id": 0}}, special],
                           "special_tokens": {eos: {"id": eos, "ids": [v.eos], "tokens": [eos]}}},
        "decoder": meta,
        "model": {"type": "Unigram", "unk_id": v.unk, "byte_fallback": False,
                  "vocab": [list(p) for p in zip(v.tokens, v.scores)]},
    }


def tokenizer_json(v, metaspace, pair_merges):
    if v.scores:
        return unigram_json(v)
    spm = v.family == "llama-spm"
    if spm:
        normalizer, pre, decoder = spm_parts(v, metaspace)
    else:
        if v.family not in BYTE_LEVEL:
            sys.exit(f"family {v.family} is not known; one of {sorted(BYTE_LEVEL)} or llama-spm")
        normalizer, pre = BYTE_LEVEL[v.family]
        decoder = byte_level()
    vocab = {t: i for i, t in enumerate(v.tokens) if not t.startswith("[PAD")}
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [added_token(v, i, special) for i, special in v.added],
        "normalizer": normalizer, "pre_tokenizer": pre,
        "post_processor": template(v) if v.add_bos else None if spm else byte_level(),
        "decoder": decoder,
        "model": {"type": "BPE", "dropout": None,
                  "unk_token": v.tokens[v.unk] if v.unk is not None else None,
                  "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": spm, "byte_fallback": spm,
                  "ignore_merges": v.family == "llama-bpe", "vocab": vocab,
                  "merges": [list(m) if pair_merges else " ".join(m) for m in v.merges]},
    }


def read(path, family):
    name = os.path.basename(path)
    if name.endswith(".gguf"):
        return read_gguf(path, family)
    if name.endswith("merges.txt"):
        return read_merges_txt(path, family)
    if name.endswith("encoder.json"):
        return read_gpt2(path, family)
    if name.endswith(".bin"):
        return read_llama2c(path, family)
    if ".model" in name:
        return read_sentencepiece(path, family)
    sys.exit(f"{path}: not a form this tool knows")


def main():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("input")
    p.add_argument("outdir")
    p.add_argument("--family", help="which pre-tokenizer, when the input does not say")
    p.add_argument("--metaspace", action="store_true",
                   help="SentencePiece: the newer form, a Metaspace pre-tokenizer")
    p.add_argument("--pair-merges", action="store_true", help='merges as ["a", "b"]')
    a = p.parse_args()
    v = read(a.input, a.family)
    os.makedirs(a.outdir, exist_ok=True)
    with open(os.path.join(a.outdir, "tokenizer.json"), "w", encoding="utf-8") as f:
        json.dump(tokenizer_json(v, a.metaspace, a.pair_merges), f, ensure_ascii=False)
    config = {"tokenizer_class": "PreTrainedTokenizerFast"}
    for key, i in (("bos_token", v.bos), ("eos_token", v.eos)):
        if i is not None and i < len(v.tokens):
            config[key] = v.tokens[i]
    with open(os.path.join(a.outdir, "tokenizer_config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f, ensure_ascii=False, indent=1)


if __name__ == "__main__":
    main()
