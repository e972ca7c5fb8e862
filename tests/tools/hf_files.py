"""Reading and writing a model directory in Hugging Face layout, with NumPy only.

Shared by make_tiny_model.py, stories_to_hf.py, numpy_llama.py and the tests. This module shares no
code with the C reader (engine/model/safetensors.c), so that the two check each other.

A safetensors file is: u64 little-endian length of the header; the header, a JSON object
name -> {"dtype", "shape", "data_offsets": [begin, end)}, offsets counted from the end of the
header; the tensors' bytes, back to back, little-endian, row-major.
"""
from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np

Tensors = dict[str, np.ndarray]

DTYPE_NAMES = {"f32": "F32", "f16": "F16", "bf16": "BF16"}
TORCH_NAMES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}


def to_bf16_bits(x: np.ndarray) -> np.ndarray:
    """float32 -> bf16 bits as uint16, to nearest, ties to even (no NaN expected)."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (rounded >> np.uint32(16)).astype(np.uint16)


def from_bf16_bits(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def round_to(x: np.ndarray, dtype: str) -> np.ndarray:
    """The value that `dtype` would store, in the array's own type."""
    if dtype == "f32":
        return x.astype(np.float32).astype(x.dtype)
    if dtype == "f16":
        return x.astype(np.float16).astype(x.dtype)
    if dtype == "bf16":
        return from_bf16_bits(to_bf16_bits(x)).astype(x.dtype)
    if dtype in ("int8", "fp8"):
        return round_to_bytes(x.astype(np.float32), dtype).astype(x.dtype)
    raise ValueError(f"unknown dtype {dtype}")


def round_to_bytes(x: np.ndarray, dtype: str) -> np.ndarray:
    """One scale for all of the last axis; to nearest, ties to even (no NaN expected)."""
    top = np.float32(127 if dtype == "int8" else 448)
    largest = np.abs(x).max(axis=-1, keepdims=True)
    y = x * np.where(largest >= 1e-30, top / np.maximum(largest, np.float32(1e-30)), 0)
    if dtype == "fp8":  # three bits of mantissa; the smallest exponent is -6
        exponent = np.maximum(np.frexp(y)[1] - 1, -6)
        step = np.ldexp(np.float32(1), exponent - 3)
    else:
        step = np.float32(1)
    return np.rint(y / step) * step * (largest / top)


def encode(x: np.ndarray, dtype: str) -> bytes:
    if dtype == "f32":
        return np.ascontiguousarray(x, dtype="<f4").tobytes()
    if dtype == "f16":
        return np.ascontiguousarray(x.astype("<f2")).tobytes()
    return to_bf16_bits(x).astype("<u2").tobytes()


def decode(raw: bytes, dtype: str, shape: list[int]) -> np.ndarray:
    if dtype == "F32":
        flat = np.frombuffer(raw, dtype="<f4")
    elif dtype == "F16":
        flat = np.frombuffer(raw, dtype="<f2").astype(np.float32)
    elif dtype == "BF16":
        flat = from_bf16_bits(np.frombuffer(raw, dtype="<u2"))
    else:
        raise ValueError(f"tensor of dtype {dtype}")
    return flat.reshape(shape)


def save_safetensors(path: Path, tensors: Tensors, dtype: str) -> int:
    """Return the bytes of tensor data."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    begin = 0
    for name, tensor in tensors.items():
        end = begin + tensor.size * (4 if dtype == "f32" else 2)
        header[name] = {"dtype": DTYPE_NAMES[dtype], "shape": list(tensor.shape),
                        "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensor data starts at a multiple of 8
    with path.open("wb") as f:
        f.write(struct.pack("<Q", len(text)))
        f.write(text)
        for tensor in tensors.values():
            f.write(encode(tensor, dtype))
    return begin


def load_safetensors(path: Path) -> Tensors:
    data = path.read_bytes()
    (n_header,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + n_header])
    tensors: Tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        raw = data[8 + n_header + begin:8 + n_header + end]
        tensors[name] = decode(raw, entry["dtype"], entry["shape"])
    return tensors


def load_weights(model_dir: Path) -> Tensors:
    """All tensors as float32, from one file or from the shards that the index names."""
    index = model_dir / "model.safetensors.index.json"
    if not index.exists():
        return load_safetensors(model_dir / "model.safetensors")
    tensors: Tensors = {}
    for name in sorted(set(json.loads(index.read_text())["weight_map"].values())):
        tensors.update(load_safetensors(model_dir / name))
    return tensors


def save_weights(model_dir: Path, tensors: Tensors, dtype: str, n_shards: int = 1) -> None:
    """One model.safetensors, or n_shards files with about equal bytes and their index."""
    for old in model_dir.glob("model*.safetensors*"):
        old.unlink()
    if n_shards <= 1:
        save_safetensors(model_dir / "model.safetensors", tensors, dtype)
        return
    shards = split_evenly(tensors, n_shards)
    weight_map: dict[str, str] = {}
    total = 0
    for i, shard in enumerate(shards):
        name = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        total += save_safetensors(model_dir / name, shard, dtype)
        weight_map.update({tensor: name for tensor in shard})
    write_json(model_dir / "model.safetensors.index.json",
               {"metadata": {"total_size": total}, "weight_map": weight_map})


def split_evenly(tensors: Tensors, n_shards: int) -> list[Tensors]:
    """Cut the list of tensors, in order, where the running size passes k/n of the whole."""
    if n_shards > len(tensors):
        raise SystemExit(f"--shards {n_shards}: the model has only {len(tensors)} tensors")
    total = sum(t.size for t in tensors.values())
    shards: list[Tensors] = [{}]
    seen = 0
    for i, (name, tensor) in enumerate(tensors.items()):
        n_left = len(tensors) - i
        n_wanted = n_shards - len(shards)
        if shards[-1] and (seen * n_shards >= total * len(shards) or n_left == n_wanted) \
                and n_wanted > 0:
            shards.append({})
        shards[-1][name] = tensor
        seen += tensor.size
    return shards


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def added_token(token_id: int, content: str) -> dict[str, object]:
    return {"id": token_id, "content": content, "single_word": False, "lstrip": False,
            "rstrip": False, "normalized": False, "special": True}


def bos_template(bos: str, bos_id: int) -> dict[str, object]:
    """A post-processor that puts BOS before a text."""
    return {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": bos, "type_id": 0}},
                   {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"SpecialToken": {"id": bos, "type_id": 0}},
                 {"Sequence": {"id": "A", "type_id": 0}},
                 {"SpecialToken": {"id": bos, "type_id": 1}},
                 {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {bos: {"id": bos, "ids": [bos_id], "tokens": [bos]}},
    }
