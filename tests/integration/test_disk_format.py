#!/usr/bin/env python3
"""Write a directory of the disk tier by DISK_FORMAT.md alone; tarnctl cache verify checks it."""
from __future__ import annotations

import fcntl
import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
from tarn_test import patience, program  # noqa: E402

PAGE, HEADER, BLOCK_BYTES, EXTENT_BYTES, N_EXTENTS = 4096, 256, 6000, 8192, 40
FINGERPRINT = hashlib.sha256(b"a model").digest()
MARK = b"Tarn: this extent is being erased"

CRC_TABLE = []
for i in range(256):
    for _ in range(8):
        i = i >> 1 ^ (0x82F63B78 if i & 1 else 0)
    CRC_TABLE.append(i)


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ CRC_TABLE[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF


def le(value: int, n: int) -> bytes:
    return value.to_bytes(n, "little")


def sealed(head: bytes, n: int) -> bytes:
    head = head.ljust(n - 4, b"\0")
    return head + le(crc32c(head), 4)


def superblock() -> bytes:
    return sealed(b"TARNDISK" + le(1, 4) + le(PAGE, 4) + le(HEADER, 4) + le(32, 4) + FINGERPRINT +
                  le(BLOCK_BYTES, 8) + le(EXTENT_BYTES, 8) + le(N_EXTENTS, 4) + le(256, 4), PAGE)


def key_of(scope: bytes, parent: bytes, starts: bool, ids: list[int]) -> bytes:
    domain = hashlib.blake2b(scope, digest_size=32, key=FINGERPRINT).digest()
    first = [ids[0] | (1 << 23 if starts else 0)]
    message = parent + b"".join(le(i, 3) for i in first + ids[1:])
    return hashlib.blake2b(message, digest_size=32, salt=domain[:16], person=domain[16:]).digest()


def header(extent: int, payload: bytes, no: int, pos: int, depth: int, parent: bytes,
           starts: bool, ids: list[int], scope: bytes) -> tuple[bytes, bytes]:
    key = key_of(scope, parent, starts, ids)
    return key, sealed(b"TKVR" + le(1, 2) + le(int(starts), 2) + le(extent, 4) +
                       le(crc32c(payload), 4) + le(no, 8) + FINGERPRINT[:8] + le(pos, 4) +
                       le(len(ids), 4) + le(depth, 4) + le(2, 4) + key + parent + scope +
                       b"".join(le(i, 3) for i in ids), HEADER)


class Directory:
    """Two paths of ten blocks; the second one's scope is a tenant's behind three public blocks."""

    def __init__(self, root: Path) -> None:
        self.path = root / f"{FINGERPRINT.hex()}-v1"
        self.path.mkdir(mode=0o700)
        self.table = bytearray(superblock().ljust(PAGE + -(-N_EXTENTS // 16) * PAGE, b"\0"))
        self.data = bytearray(N_EXTENTS * EXTENT_BYTES)
        self.n_tokens = 0
        for p in range(2):
            self.add_path(p)
        self.write()

    def add_path(self, p: int) -> None:
        parent, pos = bytes(32), 0
        for k in range(10):
            extent, depth = (p * 10 + k) * 3 % 20 * 2 + p, k // 3
            ids = [p * 5000000 + k * 1000 + i for i in range(20 if k % 3 == 2 else 32)]
            payload = bytes((extent + i) % 251 for i in range(BLOCK_BYTES))
            scope = bytes([p * 9 if k >= 3 else 0]) * 32
            parent, head = header(extent, payload, 1 + p * 10 + k, pos, depth, parent, k % 3 == 0,
                                  ids, scope)
            pos += len(ids)
            self.table[PAGE + extent * HEADER:PAGE + (extent + 1) * HEADER] = head
            self.data[extent * EXTENT_BYTES:extent * EXTENT_BYTES + BLOCK_BYTES] = payload
        self.n_tokens += pos

    def write(self) -> None:
        (self.path / "table").write_bytes(self.table)
        (self.path / "data").write_bytes(self.data)
        (self.path / "lock").write_text("1\n")


def verify(path: Path, code: int) -> dict:
    done = subprocess.run([str(program("tarnctl")), "cache", "verify", str(path), "--json"],
                          capture_output=True, text=True, timeout=patience(60), check=False)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return json.loads(done.stdout)["directories"][0] if done.stdout else {"error": done.stderr}


def the_document_is_enough_to_write_a_directory(root: Path) -> None:
    d = Directory(root)
    seen = verify(root, 0)
    assert seen["good"] == 20 and seen["empty"] == N_EXTENTS - 20, seen
    assert seen["tokens"] == d.n_tokens and seen["fingerprint"] == FINGERPRINT.hex(), seen
    assert seen["in_use"] is False and not any(seen["faults"].values()), seen


def a_changed_byte_is_damage(root: Path) -> None:
    d = Directory(root)
    d.data[5] ^= 1
    d.table[PAGE + 2 * HEADER + 40] ^= 1
    d.write()
    seen = verify(d.path, 1)
    # Whatever stands behind the torn one in its path is lost as well, but no damage.
    assert seen["faults"]["payload"] == 1 and seen["faults"]["torn"] == 1, seen
    assert seen["damaged"] == 2, seen
    assert {"extent": 0, "fault": "payload"} in seen["places"], seen
    assert {"extent": 2, "fault": "torn"} in seen["places"], seen


def the_mark_of_erasing_is_none(root: Path) -> None:
    d = Directory(root)
    last = (9 * 3) % 20 * 2
    d.table[PAGE + last * HEADER:PAGE + (last + 1) * HEADER] = MARK.ljust(HEADER, b"\0")
    d.write()
    assert verify(root, 0)["faults"]["erasing"] == 1


def a_lock_is_seen(root: Path) -> None:
    d = Directory(root)
    with (d.path / "lock").open() as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        assert verify(root, 0)["in_use"] is True
    assert verify(root, 0)["in_use"] is False


def unreadable_directories_have_their_own_exit_code(root: Path) -> None:
    assert "nowhere" in verify(root / "nowhere", 2)["error"]
    assert "neither a table nor" in verify(root, 2)["error"]
    d = Directory(root)
    d.table[8] = 2
    d.write()
    assert "version 2" in verify(root, 1)["error"]
    d.path.rename(root / f"{FINGERPRINT.hex()}-v2")
    assert "version 2" in verify(root, 2)["error"]


CASES = [the_document_is_enough_to_write_a_directory, a_changed_byte_is_damage,
         the_mark_of_erasing_is_none, a_lock_is_seen,
         unreadable_directories_have_their_own_exit_code]


def main() -> None:
    for case in CASES:
        with tempfile.TemporaryDirectory() as root:
            case(Path(root))
        print(f"ok {case.__name__}", flush=True)


if __name__ == "__main__":
    main()
