"""The types that ggml stores tensors in, in NumPy: decoders, and simple encoders.

A block is an array of bytes. Decoders compute in float32 in the order of ggml's dequantization, so
that a program's floats can be compared bit for bit. Encoders round to the nearest code and do not
search for better scales. The module shares no code with engine/model/gguf_blocks.c.

KINDS has for each type: its number in the file, elements and bytes of a block.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from hf_files import from_bf16_bits, to_bf16_bits


class Kind(NamedTuple):
    number: int
    elements: int
    n_bytes: int


KINDS = {"f32": Kind(0, 1, 4), "f16": Kind(1, 1, 2), "bf16": Kind(30, 1, 2),
         "q8_0": Kind(8, 32, 34), "q4_0": Kind(2, 32, 18), "q4_1": Kind(3, 32, 20),
         "q5_0": Kind(6, 32, 22), "q5_1": Kind(7, 32, 24), "q2_k": Kind(10, 256, 84),
         "q3_k": Kind(11, 256, 110), "q4_k": Kind(12, 256, 144), "q5_k": Kind(13, 256, 176),
         "q6_k": Kind(14, 256, 210)}
BLOCKS = [name for name, kind in KINDS.items() if kind.elements > 1]
F32 = np.float32


def halves(raw: np.ndarray) -> np.ndarray:
    """f16 numbers [n, 1] from bytes [n, 2]."""
    return np.ascontiguousarray(raw).view("<f2").astype(F32)


def half_bytes(x: np.ndarray) -> np.ndarray:
    return x.astype("<f2").reshape(len(x), -1).view(np.uint8)


def low_high(raw: np.ndarray) -> np.ndarray:
    """The low halves of all bytes, then the high ones."""
    return np.hstack([raw & 15, raw >> 4])


def bits(raw: np.ndarray) -> np.ndarray:
    """All bits of each row, the lowest of the first byte first."""
    return np.unpackbits(np.ascontiguousarray(raw), axis=1, bitorder="little")


# ---- decoders: bytes [n, bytes of a block] -> float32 [n, elements] ----

def decode_q8_0(b: np.ndarray) -> np.ndarray:
    return b[:, 2:].view(np.int8).astype(F32) * halves(b[:, :2])


def decode_q4_0(b: np.ndarray) -> np.ndarray:
    return (low_high(b[:, 2:]).astype(F32) - F32(8)) * halves(b[:, :2])


def decode_q4_1(b: np.ndarray) -> np.ndarray:
    return low_high(b[:, 4:]).astype(F32) * halves(b[:, :2]) + halves(b[:, 2:4])


def decode_q5_0(b: np.ndarray) -> np.ndarray:
    codes = low_high(b[:, 6:]) + 16 * bits(b[:, 2:6])
    return (codes.astype(F32) - F32(16)) * halves(b[:, :2])


def decode_q5_1(b: np.ndarray) -> np.ndarray:
    codes = low_high(b[:, 8:]) + 16 * bits(b[:, 4:8])
    return codes.astype(F32) * halves(b[:, :2]) + halves(b[:, 2:4])


def two_bits(raw: np.ndarray) -> np.ndarray:
    """[n, 64] -> [n, 256]: 32 bytes have 128 elements, the lowest bits of all bytes first."""
    parts = [(raw[:, half:half + 32] >> shift) & 3 for half in (0, 32) for shift in (0, 2, 4, 6)]
    return np.hstack(parts)


def decode_q2_k(b: np.ndarray) -> np.ndarray:
    d, m = halves(b[:, 80:82]), halves(b[:, 82:84])
    scales, offsets = d * (b[:, :16] & 15).astype(F32), m * (b[:, :16] >> 4).astype(F32)
    codes = two_bits(b[:, 16:80]).astype(F32)
    return np.repeat(scales, 16, axis=1) * codes - np.repeat(offsets, 16, axis=1)


def decode_q3_k(b: np.ndarray) -> np.ndarray:
    packed = b[:, 96:108].astype(np.int32)
    scales = low_high(packed[:, :8])
    high = np.hstack([(packed[:, 8:] >> shift) & 3 for shift in (0, 2, 4, 6)])
    scales = (scales | high << 4) - 32
    # Bit i of byte j belongs to element 32 i + j.
    top = bits(b[:, :32]).reshape(-1, 32, 8).transpose(0, 2, 1).reshape(-1, 256)
    codes = two_bits(b[:, 32:96]).astype(np.int32) - 4 * (1 - top.astype(np.int32))
    scale = halves(b[:, 108:110]) * scales.astype(F32)
    return np.repeat(scale, 16, axis=1) * codes.astype(F32)


def unpack_six(b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """12 bytes -> 8 scales and 8 offsets of 6 bits."""
    first, second, third = b[:, :4], b[:, 4:8], b[:, 8:12]
    scales = np.hstack([first & 63, (third & 15) | (first >> 6) << 4])
    offsets = np.hstack([second & 63, third >> 4 | (second >> 6) << 4])
    return scales, offsets


def decode_k(b: np.ndarray, codes: np.ndarray) -> np.ndarray:
    scales, offsets = unpack_six(b[:, 4:16])
    scale = halves(b[:, :2]) * scales.astype(F32)
    offset = halves(b[:, 2:4]) * offsets.astype(F32)
    return np.repeat(scale, 32, axis=1) * codes.astype(F32) - np.repeat(offset, 32, axis=1)


def nibbles_k(raw: np.ndarray) -> np.ndarray:
    """[n, 128] -> [n, 256]: 32 bytes have 64 elements."""
    return np.hstack([low_high(raw[:, i:i + 32]) for i in range(0, 128, 32)])


def decode_q4_k(b: np.ndarray) -> np.ndarray:
    return decode_k(b, nibbles_k(b[:, 16:]))


def decode_q5_k(b: np.ndarray) -> np.ndarray:
    top = bits(b[:, 16:48]).reshape(-1, 32, 8).transpose(0, 2, 1).reshape(-1, 256)
    return decode_k(b, nibbles_k(b[:, 48:]) + 16 * top)


def decode_q6_k(b: np.ndarray) -> np.ndarray:
    low = np.hstack([low_high(b[:, i:i + 64]) for i in (0, 64)])
    codes = (low | two_bits(b[:, 128:192]) << 4).astype(np.int32) - 32
    scale = halves(b[:, 208:210]) * b[:, 192:208].view(np.int8).astype(F32)
    return np.repeat(scale, 16, axis=1) * codes.astype(F32)


# ---- encoders: float32 [n, elements] -> bytes ----

def divide(x: np.ndarray, by: np.ndarray) -> np.ndarray:
    """x / by, and 0 where by is 0."""
    return np.where(by == 0, 0, x / np.where(by == 0, 1, by))


def to_codes(x: np.ndarray, low: int, high: int) -> np.ndarray:
    return np.clip(np.rint(x), low, high).astype(np.int32)


def join(low: np.ndarray) -> np.ndarray:
    """The reverse of low_high()."""
    half = low.shape[1] // 2
    return (low[:, :half] | low[:, half:] << 4).astype(np.uint8)


def pack_bits(codes: np.ndarray) -> np.ndarray:
    return np.packbits(codes.astype(np.uint8), axis=1, bitorder="little")


def encode_q8_0(x: np.ndarray) -> np.ndarray:
    d = half_bytes(np.abs(x).max(axis=1, keepdims=True) / 127)
    codes = to_codes(divide(x, halves(d)), -127, 127)
    return np.hstack([d, codes.astype(np.int8).view(np.uint8)])


def largest(x: np.ndarray) -> np.ndarray:
    low, high = x.min(axis=-1, keepdims=True), x.max(axis=-1, keepdims=True)
    return np.where(-low > high, low, high)


def encode_q4_0(x: np.ndarray) -> np.ndarray:
    d = half_bytes(largest(x) / -8)
    return np.hstack([d, join(to_codes(divide(x, halves(d)) + 8, 0, 15))])


def encode_q5_0(x: np.ndarray) -> np.ndarray:
    d = half_bytes(largest(x) / -16)
    codes = to_codes(divide(x, halves(d)) + 16, 0, 31)
    return np.hstack([d, pack_bits(codes >> 4), join(codes & 15)])


def encode_offset(x: np.ndarray, top: int) -> tuple[np.ndarray, np.ndarray]:
    low, high = x.min(axis=1, keepdims=True), x.max(axis=1, keepdims=True)
    head = np.hstack([half_bytes((high - low) / top), half_bytes(low)])
    return head, to_codes(divide(x - halves(head[:, 2:4]), halves(head[:, :2])), 0, top)


def encode_q4_1(x: np.ndarray) -> np.ndarray:
    head, codes = encode_offset(x, 15)
    return np.hstack([head, join(codes)])


def encode_q5_1(x: np.ndarray) -> np.ndarray:
    head, codes = encode_offset(x, 31)
    return np.hstack([head, pack_bits(codes >> 4), join(codes & 15)])


def join_two_bits(codes: np.ndarray) -> np.ndarray:
    """The reverse of two_bits()."""
    parts = codes.reshape(-1, 2, 4, 32)
    packed = sum(parts[:, :, i] << 2 * i for i in range(4))
    return np.asarray(packed).reshape(-1, 64).astype(np.uint8)


def grouped(x: np.ndarray, group: int, top: int, scale_top: int,
            ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Codes from 0 to top, whole scales and offsets of groups, and the f16 scales of these."""
    g = x.reshape(len(x), -1, group)
    low = np.minimum(g.min(axis=2), 0)
    high = np.maximum(g.max(axis=2), low)
    scales, offsets = (high - low) / top, -low
    d = half_bytes(scales.max(axis=1, keepdims=True) / scale_top)
    m = half_bytes(offsets.max(axis=1, keepdims=True) / scale_top)
    whole = to_codes(divide(scales, halves(d)), 0, scale_top)
    whole_offsets = to_codes(divide(offsets, halves(m)), 0, scale_top)
    scale = (halves(d) * whole)[:, :, None]
    offset = (halves(m) * whole_offsets)[:, :, None]
    codes = to_codes(divide(g + offset, scale), 0, top).reshape(len(x), -1)
    return codes, whole, whole_offsets, d, m


def encode_q2_k(x: np.ndarray) -> np.ndarray:
    codes, scales, offsets, d, m = grouped(x, 16, 3, 15)
    return np.hstack([(scales | offsets << 4).astype(np.uint8), join_two_bits(codes), d, m])


def pack_six(scales: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    first = scales[:, :4] | scales[:, 4:] >> 4 << 6
    second = offsets[:, :4] | offsets[:, 4:] >> 4 << 6
    third = (scales[:, 4:] & 15) | (offsets[:, 4:] & 15) << 4
    return np.hstack([first, second, third]).astype(np.uint8)


def join_k(codes: np.ndarray) -> np.ndarray:
    return np.hstack([join(codes[:, i:i + 64]) for i in range(0, 256, 64)])


def encode_q4_k(x: np.ndarray) -> np.ndarray:
    codes, scales, offsets, d, m = grouped(x, 32, 15, 63)
    return np.hstack([d, m, pack_six(scales, offsets), join_k(codes)])


def high_bits_k(codes: np.ndarray) -> np.ndarray:
    """Bit i of byte j is the one of element 32 i + j."""
    return pack_bits(codes.reshape(-1, 8, 32).transpose(0, 2, 1).reshape(-1, 256))


def encode_q5_k(x: np.ndarray) -> np.ndarray:
    codes, scales, offsets, d, m = grouped(x, 32, 31, 63)
    return np.hstack([d, m, pack_six(scales, offsets), high_bits_k(codes >> 4),
                      join_k(codes & 15)])


def signed_groups(x: np.ndarray, top: int, scale_top: int,
                  ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes from -top to top - 1 of groups of 16, whole scales, and the f16 scale of these."""
    g = x.reshape(len(x), -1, 16)
    scales = largest(g)[:, :, 0] / -top
    d = half_bytes(largest(scales) / -scale_top)
    whole = to_codes(divide(scales, halves(d)), -scale_top, scale_top - 1)
    scale = (halves(d) * whole)[:, :, None]
    return to_codes(divide(g, scale), -top, top - 1).reshape(len(x), -1), whole, d


def encode_q3_k(x: np.ndarray) -> np.ndarray:
    codes, scales, d = signed_groups(x, 4, 32)
    scales, codes = scales + 32, codes + 4
    low = join(scales & 15)
    high = sum((scales[:, 4 * i:4 * i + 4] >> 4) << 2 * i for i in range(4))
    return np.hstack([high_bits_k(codes >> 2), join_two_bits(codes & 3), low,
                      np.asarray(high).astype(np.uint8), d])


def encode_q6_k(x: np.ndarray) -> np.ndarray:
    codes, scales, d = signed_groups(x, 32, 128)
    codes += 32
    low = np.hstack([join(codes[:, i:i + 128] & 15) for i in (0, 128)])
    return np.hstack([low, join_two_bits(codes >> 4), scales.astype(np.int8).view(np.uint8), d])


Coder = Callable[[np.ndarray], np.ndarray]
DECODERS: dict[str, Coder] = {
    "q8_0": decode_q8_0, "q4_0": decode_q4_0, "q4_1": decode_q4_1, "q5_0": decode_q5_0,
    "q5_1": decode_q5_1, "q2_k": decode_q2_k, "q3_k": decode_q3_k, "q4_k": decode_q4_k,
    "q5_k": decode_q5_k, "q6_k": decode_q6_k}
ENCODERS: dict[str, Coder] = {
    "q8_0": encode_q8_0, "q4_0": encode_q4_0, "q4_1": encode_q4_1, "q5_0": encode_q5_0,
    "q5_1": encode_q5_1, "q2_k": encode_q2_k, "q3_k": encode_q3_k, "q4_k": encode_q4_k,
    "q5_k": encode_q5_k, "q6_k": encode_q6_k}


def encode(x: np.ndarray, kind: str) -> bytes:
    """The bytes of an array whose rows are whole blocks."""
    x = np.ascontiguousarray(x, dtype=F32)
    if kind == "f32":
        return x.astype("<f4").tobytes()
    if kind == "f16":
        return x.astype("<f2").tobytes()
    if kind == "bf16":
        return to_bf16_bits(x).astype("<u2").tobytes()
    raw = ENCODERS[kind](x.reshape(-1, KINDS[kind].elements))
    assert raw.shape[1] == KINDS[kind].n_bytes and raw.dtype == np.uint8
    return raw.tobytes()


def decode(raw: bytes, kind: str, shape: tuple[int, ...]) -> np.ndarray:
    if kind == "f32":
        return np.frombuffer(raw, dtype="<f4").reshape(shape)
    if kind == "f16":
        return np.frombuffer(raw, dtype="<f2").astype(F32).reshape(shape)
    if kind == "bf16":
        return from_bf16_bits(np.frombuffer(raw, dtype="<u2")).reshape(shape)
    blocks = np.frombuffer(raw, dtype=np.uint8).reshape(-1, KINDS[kind].n_bytes)
    x = DECODERS[kind](blocks)
    assert x.dtype == F32
    return x.reshape(shape)
