#!/usr/bin/env python3
"""Compare Tarn's tokenizer with Hugging Face `tokenizers` (PyPI) on random Unicode strings.

usage: compare_tokenizers.py LIB.so DIR... [--count N] [--seed S]

LIB.so is any shared library that contains engine/text/tokenizer/, engine/text/detokenize.c and
base/. Each DIR holds a tokenizer.json. The program prints, for each DIR, the number of equal
encodings and decodings and the first differences. The exit code is 1 if an encoding differs. CI
does not run the program, because the package is not installed there."""

import argparse
import ctypes
import os
import random
import sys
import unicodedata

from tokenizers import Tokenizer


class Buf(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("len", ctypes.c_size_t), ("cap", ctypes.c_size_t),
                ("max", ctypes.c_size_t)]

    def bytes(self):
        return ctypes.string_at(self.data, self.len) if self.len else b""


ADD_SPECIAL, PARSE_SPECIAL, CONTINUES = 1, 2, 4


class Tarn:
    def __init__(self, lib, path):
        self.lib = ctypes.CDLL(lib)
        self.lib.tokenizer_bytes.restype = ctypes.c_void_p
        self.lib.tokenizer_first_bytes.restype = ctypes.c_void_p
        self.tok, why = ctypes.c_void_p(), Buf(max=1024)
        status = self.lib.tokenizer_load(ctypes.byref(self.tok), path.encode(), ctypes.byref(why))
        if status:
            sys.exit(f"{path}: status {status}: {why.bytes().decode()}")

    def encode(self, text, flags):
        ids = Buf(max=1 << 30)
        if isinstance(text, str):
            text = text.encode("utf-8", "surrogatepass")
        status = self.lib.tokenizer_encode(self.tok, text, ctypes.c_size_t(len(text)), flags,
                                           ctypes.byref(ids))
        raw = ids.bytes()
        self.lib.buf_fini(ctypes.byref(ids))
        if status:
            raise RuntimeError(f"status {status}")
        return list(memoryview(raw).cast("I")) if raw else []

    def decode(self, ids, show_special):
        out = b""
        n = ctypes.c_size_t()
        begun = False
        for i in ids:
            if not show_special and self.lib.tokenizer_is_special(self.tok, i) & 1:
                continue
            piece = ctypes.string_at(self.lib.tokenizer_bytes(self.tok, i, ctypes.byref(n)),
                                     n.value)
            first = ctypes.string_at(self.lib.tokenizer_first_bytes(self.tok, i, ctypes.byref(n)),
                                     n.value)
            out += piece if begun else first
            begun = begun or bool(piece or first)
        return out.decode("utf-8", "replace")


WORDS = ["Hello", "world", " the", " I'm", "'ll", "'RE", " 123", "4567", "  ", "\n", "\r\n", "\t",
         " \n ", "!!", "?!", "...", " (", "import os\n", "    return", "café", "naïve", "Ünïcode",
         "日本語", "中文字符", "한국어", "Привет", "мир", "العربية", "עברית", "हिन्दी",
         "ไทย", "ქართული",
         "🙂", "👨‍👩‍👧", "🇩🇪", "½", "²", "Ⅷ", "٣", "\u00a0", "\u2003", "\u3000", "\u180e", "\u200b",
         "\u0301", "e\u0301", "\u1100\u1161\u11a8", "ﬁ", "ſ", "K", "İ", "ß", "\u2581", "\u0085",
         "\u2028", "\x00", "\x1f", "\x7f", "\ufeff", "\ufffd", "\U0001d400", "<0x41>", "<", "|>"]

# Ranges of assigned characters; which code points are letters changed with Unicode versions, so the
# draw leaves out characters that Python's tables do not have.
RANGES = [(0x20, 0x7f), (0x80, 0x24f), (0x250, 0x52f), (0x530, 0x8ff), (0x900, 0xdff),
          (0xe00, 0x10ff), (0x1100, 0x13ff), (0x1400, 0x1fff), (0x2000, 0x2bff), (0x2c00, 0x31ff),
          (0x3200, 0x9fff),
          (0xa000, 0xd7ff), (0xe000, 0xffff), (0x10000, 0x1ffff), (0x20000, 0x3134f),
          (0xe0000, 0x10ffff)]


def random_char(rng, assigned_only):
    while True:
        low, high = rng.choice(RANGES)
        c = chr(rng.randint(low, high))
        if not assigned_only or unicodedata.category(c) != "Cn":
            return c


def random_text(rng, specials, assigned_only):
    parts = []
    for _ in range(rng.randint(0, 12)):
        kind = rng.random()
        if kind < 0.55:
            parts.append(rng.choice(WORDS))
        elif kind < 0.60 and specials:
            parts.append(rng.choice(specials))
        elif kind < 0.70:
            unit = rng.choice([" ", "a", "=", "0", "\n", "é", "е\u0308"])
            parts.append(unit * rng.randint(1, 40))
        else:
            parts.append("".join(random_char(rng, assigned_only)
                                 for _ in range(rng.randint(1, 8))))
    return "".join(parts)


def compare(lib, path, count, seed, assigned_only):
    ours, theirs = Tarn(lib, path), Tokenizer.from_file(os.path.join(path, "tokenizer.json"))
    rng = random.Random(seed)
    specials = [t.content for t in theirs.get_added_tokens_decoder().values()]
    equal = decoded = 0
    shown = 0
    for _ in range(count):
        text = random_text(rng, specials, assigned_only)
        want = theirs.encode(text).ids
        got = ours.encode(text, ADD_SPECIAL | PARSE_SPECIAL)
        equal += got == want
        plain = theirs.decode(want, skip_special_tokens=True)
        decoded += ours.decode(want, False) == plain
        if got != want and shown < 3:
            shown += 1
            print(f"  {text!r}\n    want {want}\n    got  {got}")
    print(f"{path}: {equal} of {count} encodings equal, {decoded} decodings equal")
    return equal == count


def main():
    p = argparse.ArgumentParser()
    p.add_argument("lib")
    p.add_argument("dirs", nargs="+")
    p.add_argument("--count", type=int, default=10000)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--any-code-point", action="store_true", help="unassigned ones, too")
    a = p.parse_args()
    good = [compare(a.lib, d, a.count, a.seed, not a.any_code_point) for d in a.dirs]
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
