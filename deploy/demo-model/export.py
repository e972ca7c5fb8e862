#!/usr/bin/env python3
"""Write a checkpoint of train.py as model.safetensors (bfloat16, Hugging Face tensor names) and
read such files."""
import argparse
import json
import os
import struct

import numpy as np
import torch

from demo_common import HERE


def to_bfloat16(x):
    """Bits of the nearest bfloat16, ties to even."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    if not np.isfinite(x).all():
        raise ValueError("a weight is not finite")
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def write_safetensors(path, tensors):
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, x in tensors.items():
        size = 2 * x.size
        header[name] = {"dtype": "BF16", "shape": list(x.shape),
                        "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    # Write to another name first, so that a server that starts now does not read an incomplete
    # file.
    with open(path + ".new", "wb") as f:
        f.write(struct.pack("<Q", len(text)))
        f.write(text)
        for x in tensors.values():
            f.write(to_bfloat16(x).tobytes())
    os.replace(path + ".new", path)


def read_safetensors(path):
    """The tensors of a bfloat16 file, as float32."""
    with open(path, "rb") as f:
        length = struct.unpack("<Q", f.read(8))[0]
        header = json.loads(f.read(length))
        body = f.read()
    out = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if entry["dtype"] != "BF16":
            raise ValueError(name + " is not BF16")
        a, b = entry["data_offsets"]
        bits = np.frombuffer(body[a:b], dtype="<u2").astype(np.uint32) << 16
        out[name] = torch.from_numpy(bits.view(np.float32).reshape(entry["shape"]).copy())
    return out


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoint", default="/tmp/demo/model.pt")
    parser.add_argument("--out", default=os.path.join(HERE, "model.safetensors"))
    args = parser.parse_args()
    saved = torch.load(args.checkpoint, map_location="cpu")
    tensors = {n: p.float().numpy() for n, p in saved["model"].items()}
    write_safetensors(args.out, tensors)
    print(args.out, os.path.getsize(args.out), "bytes,", sum(x.size for x in tensors.values()),
          "parameters,", saved["state"])


if __name__ == "__main__":
    main()
