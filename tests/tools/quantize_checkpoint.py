#!/usr/bin/env python3
"""Quantize a small float checkpoint in each of the formats that people download.

    quantize_checkpoint.py DIR OUT FORMAT [--plain DIR] [--seed 1] [--head]

DIR is a directory of make_tiny_family.py; FORMAT is a key of FORMATS. Products of the layers (and,
with --head, the output layer) are quantized; all other tensors stay as they are, in f32. --plain
writes the same model with the exact dequantized weights, (code - zero) * scale in f32, as plain
floats. Codes are rounded to nearest; the layouts follow the public definitions:

  gptq    AutoGPTQ: qweight and qzeros pack the lowest bits first, along K and N; zeros less 1
          (as GPTQModel writes them: the word of zeros less the word of ones)
  awq     AutoAWQ, gemm: nibble i of a word has column (0, 2, 4, 6, 1, 3, 5, 7)[i]
  ct-*    compressed-tensors: codes plus half of the range, packed along K; zero points along N
  fp8     DeepSeek-V3: weight_scale_inv per block of 128 x 128 (here: `block`)
"""
from __future__ import annotations

import argparse
import json
import re
import shutil
import struct
import sys
from pathlib import Path
from typing import Any, Callable

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
from hf_files import load_weights, save_weights, to_bf16_bits, write_json  # noqa: E402

Array = np.ndarray
# A stored tensor: the name of its type in the file, and an array with elements of that size.
Stored = dict[str, tuple[str, Array]]
Config = dict[str, Any]
Result = tuple[Stored, Array]  # parts of a module, and the dequantized weight

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def f32(x: Array) -> Array:
    return np.asarray(x, dtype=np.float32)


def pack(codes: Array, bits: int, axis: int) -> Array:
    """Unsigned codes, the lowest bits first, into I32 along an axis; the rest is filled with 0."""
    per = 32 // bits
    codes = np.moveaxis(np.asarray(codes, dtype=np.uint32), axis, 0)
    n_fill = -len(codes) % per
    codes = np.concatenate([codes, np.zeros((n_fill, *codes.shape[1:]), dtype=np.uint32)])
    codes = codes.reshape(-1, per, *codes.shape[1:])
    words = np.zeros((len(codes), *codes.shape[2:]), dtype=np.uint32)
    for i in range(per):
        words |= codes[:, i] << np.uint32(bits * i)
    return np.ascontiguousarray(np.moveaxis(words, 0, axis)).view(np.int32)


def pack_awq(codes: Array) -> Array:
    """[rows, N] -> [rows, N / 8]"""
    words = np.asarray(codes).reshape(len(codes), -1, 8)[:, :, list(AWQ_ORDER)]
    return pack(words.reshape(len(codes), -1), 4, 1)


def stored_scales(x: Array, dtype: str) -> tuple[tuple[str, Array], Array]:
    """The file's tensor, and its values in f32."""
    if dtype == "BF16":
        bits = to_bf16_bits(f32(x))
        return (dtype, bits), (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    stored = np.asarray(x, dtype=np.float16 if dtype == "F16" else np.float32)
    return (dtype, stored), f32(stored)


def spread(x: Array, rows: int, cols: int, n: int, k: int) -> Array:
    """A value for each block of rows x cols -> one for each element [n, k]."""
    return np.repeat(np.repeat(x, rows, axis=0), cols, axis=1)[:n, :k]


def ranges(w: Array, rows: int, cols: int, groups: Array | None = None) -> tuple[Array, Array]:
    """Least and largest element of each block; with `groups`, of columns with one group."""
    n, k = w.shape
    if groups is not None:
        parts = [w[:, groups == g] for g in range(int(groups.max()) + 1)]
        return (np.stack([p.min(axis=1) for p in parts], axis=1),
                np.stack([p.max(axis=1) for p in parts], axis=1))
    row_at, col_at = range(0, n, rows), range(0, k, cols)
    return (np.minimum.reduceat(np.minimum.reduceat(w, row_at, axis=0), col_at, axis=1),
            np.maximum.reduceat(np.maximum.reduceat(w, row_at, axis=0), col_at, axis=1))


def whole_numbers(w: Array, bits: int, symmetric: bool, rows: int, cols: int, dtype: str,
                  groups: Array | None = None) -> tuple[Array, Array, tuple[str, Array], Array]:
    """Unsigned codes, zero points of the blocks, stored scales, and dequantized elements."""
    n, k = w.shape
    low, high = ranges(w, rows, cols, groups)
    half = 1 << (bits - 1)
    if symmetric:
        scales = np.maximum(np.abs(low), np.abs(high)) / (half - 0.5)
    else:
        low, high = np.minimum(low, 0), np.maximum(high, 0)
        scales = (high - low) / (2 * half - 1)
    stored, scales = stored_scales(scales, dtype)
    zeros = np.full(scales.shape, half) if symmetric else np.clip(
        np.rint(-low / scales), 0, 2 * half - 1)
    zeros = zeros.astype(np.int32)

    def each(x: Array) -> Array:
        return x[:, groups] if groups is not None else spread(x, rows, cols, n, k)
    codes = np.clip(np.rint(w / each(scales)) + each(zeros), 0, 2 * half - 1).astype(np.int32)
    return codes, zeros, stored, f32(codes - each(zeros)) * each(scales)


def size_of(size: int, whole: int) -> int:
    return size if size > 0 else whole


def gptq(w: Array, c: Config, rng: np.random.Generator) -> Result:
    n, k = w.shape
    bits, group = c["bits"], size_of(c["group_size"], k)
    g_idx = np.arange(k) // group
    if c["desc_act"]:
        g_idx = rng.permutation(g_idx)
    codes, zeros, scales, plain = whole_numbers(w, bits, c["sym"], 1, group, "F16", g_idx)
    words = pack(zeros.T, bits, 1).view(np.uint32)
    if c["checkpoint_format"] == "gptq":  # 1 less for each, with a borrow from the next
        words = words - np.uint32(0x11111111 if bits == 4 else 0x01010101)
    parts: Stored = {"qweight": ("I32", pack(codes.T, bits, 0)),
                     "qzeros": ("I32", words.view(np.int32)),
                     "scales": ("F16", scales[1].T),
                     "g_idx": ("I32", g_idx.astype(np.int32))}
    return parts, plain


def awq(w: Array, c: Config, rng: np.random.Generator) -> Result:
    group = size_of(c["group_size"], w.shape[1])
    codes, zeros, scales, plain = whole_numbers(w, 4, False, 1, group, "F16")
    return {"qweight": ("I32", pack_awq(codes.T)), "qzeros": ("I32", pack_awq(zeros.T)),
            "scales": ("F16", scales[1].T)}, plain


def block_of(weights: Config, n: int, k: int) -> tuple[int, int]:
    return {"tensor": (n, k), "channel": (1, k), "group": (1, weights["group_size"] or k),
            "block": tuple(weights["block_structure"] or (n, k))}[weights["strategy"]]


def scale_shape(weights: Config, scales: tuple[str, Array]) -> tuple[str, Array]:
    return (scales[0], scales[1].reshape(1)) if weights["strategy"] == "tensor" else scales


def ct_packed(w: Array, c: Config, rng: np.random.Generator) -> Result:
    weights = c["config_groups"]["group_0"]["weights"]
    bits, (rows, cols) = weights["num_bits"], block_of(weights, *w.shape)
    groups = None
    if weights["actorder"] == "group":
        groups = rng.permutation(np.arange(w.shape[1]) // cols)
    codes, zeros, scales, plain = whole_numbers(w, bits, weights["symmetric"], rows, cols, "BF16",
                                                groups)
    parts: Stored = {"weight_packed": ("I32", pack(codes, bits, 1)),
                     "weight_scale": scale_shape(weights, scales),
                     "weight_shape": ("I64", np.array(w.shape, dtype=np.int64))}
    if not weights["symmetric"]:
        parts["weight_zero_point"] = ("I32", pack(zeros, bits, 0))
    if groups is not None:
        parts["weight_g_idx"] = ("I32", groups.astype(np.int32))
    return parts, plain


def ct_int(w: Array, c: Config, rng: np.random.Generator) -> Result:
    weights = c["config_groups"]["group_0"]["weights"]
    rows, cols = block_of(weights, *w.shape)
    codes, zeros, scales, plain = whole_numbers(w, 8, weights["symmetric"], rows, cols, "F32")
    parts: Stored = {"weight": ("I8", (codes - 128).astype(np.int8)),
                     "weight_scale": scale_shape(weights, scales)}
    if not weights["symmetric"]:
        zero = (zeros - 128).astype(np.int8)
        parts["weight_zero_point"] = scale_shape(weights, ("I8", zero))
    return parts, plain


def f8_values(e5m2: bool) -> Array:
    """The values of all 256 codes, by the definition of the OCP 8-bit formats."""
    n_mantissa, bias = (2, 15) if e5m2 else (3, 7)
    values = np.zeros(256, dtype=np.float32)
    for code in range(256):
        exponent, mantissa = (code & 127) >> n_mantissa, code & ((1 << n_mantissa) - 1)
        if e5m2 and exponent == 31:
            value = np.nan if mantissa else np.inf
        elif not e5m2 and code & 127 == 127:
            value = np.nan
        elif exponent == 0:
            value = mantissa * 2.0 ** (1 - bias - n_mantissa)
        else:
            value = (1 + mantissa / (1 << n_mantissa)) * 2.0 ** (exponent - bias)
        values[code] = -value if code & 128 else value
    return values


def f8(w: Array, rows: int, cols: int, e5m2: bool, dtype: str) \
        -> tuple[Array, tuple[str, Array], Array]:
    values = f8_values(e5m2)
    finite = np.flatnonzero(np.isfinite(values))
    finite = finite[np.argsort(values[finite], kind="stable")]
    low, high = ranges(w, rows, cols)
    stored, scales = stored_scales(np.maximum(np.abs(low), np.abs(high)) / values[finite].max(),
                                   dtype)
    each = spread(scales, rows, cols, *w.shape)
    middles = (values[finite][1:] + values[finite][:-1]) / 2
    codes = finite[np.searchsorted(middles, w / each)].astype(np.uint8)
    return codes, stored, values[codes] * each


def fp8(w: Array, c: Config, rng: np.random.Generator) -> Result:
    block = c.get("weight_block_size")
    rows, cols = block or w.shape
    if c["quant_method"] == "fbgemm_fp8":
        rows = 1
    e5m2 = c.get("fmt") == "e5m2"
    codes, scales, plain = f8(w, rows, cols, e5m2, "F32")
    name = "weight_scale_inv" if block else "weight_scale"
    if rows == w.shape[0] and not block:
        scales = (scales[0], scales[1].reshape(()))
    return {"weight": ("F8_E5M2" if e5m2 else "F8_E4M3", codes), name: scales}, plain


def ct_float(w: Array, c: Config, rng: np.random.Generator) -> Result:
    weights = c["config_groups"]["group_0"]["weights"]
    codes, scales, plain = f8(w, *block_of(weights, *w.shape), False, "BF16")
    return {"weight": ("F8_E4M3", codes), "weight_scale": scale_shape(weights, scales)}, plain


def compressed(name: str, **weights: Any) -> Config:
    usual = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group",
             "group_size": None, "block_structure": None, "actorder": None, "dynamic": False}
    return {"quant_method": "compressed-tensors", "format": name, "ignore": ["lm_head"],
            "quantization_status": "compressed", "kv_cache_scheme": None,
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": {**usual, **weights},
                                          "input_activations": None}}}


def gptq_config(**changes: Any) -> Config:
    return {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True,
            "checkpoint_format": "gptq", "true_sequential": True, **changes}


AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}
Quantize = Callable[[Array, Config, np.random.Generator], Result]
FORMATS: dict[str, tuple[Quantize, Config]] = {
    "gptq": (gptq, gptq_config()),
    "gptq-asym": (gptq, gptq_config(sym=False)),
    "gptq-v2": (gptq, gptq_config(sym=False, checkpoint_format="gptq_v2")),
    "gptq-8": (gptq, gptq_config(bits=8, group_size=-1)),
    "gptq-desc": (gptq, gptq_config(desc_act=True, group_size=32)),
    "awq": (awq, AWQ),
    "awq-rows": (awq, {**AWQ, "group_size": -1}),
    "ct-packed": (ct_packed, compressed("pack-quantized", group_size=32)),
    "ct-packed-asym": (ct_packed, compressed("pack-quantized", group_size=32, symmetric=False)),
    "ct-packed-8": (ct_packed, compressed("pack-quantized", num_bits=8, strategy="channel",
                                          symmetric=False)),
    "ct-packed-order": (ct_packed, compressed("pack-quantized", group_size=32,
                                              actorder="group")),
    "ct-int": (ct_int, compressed("int-quantized", num_bits=8, strategy="channel")),
    "ct-int-tensor": (ct_int, compressed("int-quantized", num_bits=8, strategy="tensor",
                                         symmetric=False)),
    "ct-int-group": (ct_int, compressed("naive-quantized", num_bits=8, group_size=32,
                                        symmetric=False)),
    "ct-float": (ct_float, compressed("float-quantized", num_bits=8, type="float",
                                      strategy="channel")),
    "ct-float-tensor": (ct_float, compressed("naive-quantized", num_bits=8, type="float",
                                             strategy="tensor")),
    "ct-float-block": (ct_float, compressed("float-quantized", num_bits=8, type="float",
                                            strategy="block", block_structure=[24, 16])),
    "fp8-block": (fp8, {**FP8, "weight_block_size": [24, 16]}),
    "fp8-block-128": (fp8, {**FP8, "weight_block_size": [128, 128]}),
    "fp8-tensor": (fp8, FP8),
    "fp8-e5m2": (fp8, {**FP8, "fmt": "e5m2"}),
    "fbgemm-fp8": (fp8, {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}),
}


def save_stored(path: Path, tensors: Stored) -> None:
    """A safetensors file with a type for each tensor; large elements go first, for alignment."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    order = sorted(tensors, key=lambda name: -tensors[name][1].itemsize)
    begin = 0
    for name in order:
        dtype, x = tensors[name]
        header[name] = {"dtype": dtype, "shape": list(x.shape),
                        "data_offsets": [begin, begin + x.nbytes]}
        begin += x.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text
                     + b"".join(np.ascontiguousarray(tensors[name][1]).tobytes()
                                for name in order))


def quantize(source: Path, out: Path, name: str, *, plain: Path | None = None, seed: int = 1,
             head: bool = False) -> Config:
    """Write the directory OUT, and PLAIN if there is one; return the quantization_config."""
    make, config = FORMATS[name]
    rng = np.random.default_rng(seed)
    chosen = re.compile(r"_proj\.weight$" + (r"|^lm_head\.weight$" if head else ""))
    stored: Stored = {}
    floats: dict[str, Array] = {}
    for tensor, w in load_weights(source).items():
        if not chosen.search(tensor):
            stored[tensor], floats[tensor] = ("F32", f32(w)), f32(w)
            continue
        parts, floats[tensor] = make(f32(w), config, rng)
        module = tensor.removesuffix("weight")
        stored.update({module + part: value for part, value in parts.items()})
    for folder in [out] + ([plain] if plain else []):
        shutil.copytree(source, folder, dirs_exist_ok=True,
                        ignore=shutil.ignore_patterns("model*.safetensors*"))
    if plain:
        save_weights(plain, floats, "f32")
    save_stored(out / "model.safetensors", stored)
    model = json.loads((source / "config.json").read_text())
    write_json(out / "config.json", {**model, "quantization_config": config})
    return config


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("source", type=Path, metavar="DIR")
    p.add_argument("out", type=Path, metavar="OUT")
    p.add_argument("format", choices=sorted(FORMATS))
    p.add_argument("--plain", type=Path, metavar="DIR")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--head", action="store_true", help="quantize the output layer, too")
    a = p.parse_args()
    quantize(a.source, a.out, a.format, plain=a.plain, seed=a.seed, head=a.head)


if __name__ == "__main__":
    main()
