"""A member of a pool that knows the secret and says what it likes.

The member is in the directory as an instance is, accepts what instances tell it, and sends notes
(docs/design/pool.md: Messages, Notes).
"""
from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import struct
import threading
import time
from typing import Any, Callable

from pool_harness import Instance, Pool

FRAME, HELLO, PROOF = b"TRN1", b"TPHI", b"TPPR"
HANDSHAKE_VERSION, WIRE_VERSION, WIRE_NOTE = 1, 4, 12
FOLLOW_VERSION = 1
DIGEST, DIGESTS, STAMPS, WANT, RECORDS, ERASE = range(1, 7)
DOCUMENT, PREAMBLE = 0, 1
NAME_BYTES = 16
TIMEOUT = 60


def crc_table() -> list[int]:
    table = []
    for i in range(256):
        for _ in range(8):
            i = i >> 1 ^ (0x82F63B78 if i & 1 else 0)
        table.append(i)
    return table


TABLE = crc_table()


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for b in data:
        crc = crc >> 8 ^ TABLE[(crc ^ b) & 255]
    return crc ^ 0xFFFFFFFF


def receive(s: socket.socket, n: int) -> bytes:
    data = b""
    while len(data) < n:
        piece = s.recv(n - len(data))
        if not piece:
            raise ConnectionError("closed")
        data += piece
    return data


def frame(head: bytes, payload: bytes = b"") -> bytes:
    return FRAME + struct.pack("<IQ", len(head), len(payload)) + head + payload


def send_frame(s: socket.socket, head: bytes) -> None:
    s.sendall(frame(head))


def take_frame(s: socket.socket) -> tuple[bytes, bytes]:
    magic, n_head, n_payload = struct.unpack("<4sIQ", receive(s, 16))
    assert magic == FRAME
    return receive(s, n_head), receive(s, n_payload)


# --- messages about documents ---

def name_of(kind: int, owner: str, name: str) -> bytes:
    return hashlib.blake2b(bytes([kind]) + owner.encode() + b"\0" + name.encode() + b"\0",
                           digest_size=16).digest()


def follow(kind: int, items: bytes) -> bytes:
    return bytes([FOLLOW_VERSION, kind, 0, 0]) + items


def stamp(name: bytes, counter: int, writer: int = 1) -> bytes:
    return name + struct.pack("<QQ", counter, writer)


def record(owner: str, name: str, text: str, counter: int, version: int = 1, *,
           named: bytes | None = None, writer: int = 1) -> bytes:
    """A document. named: another name than its owner and id have."""
    title, now = name.encode(), int(time.time())
    texts = [owner.encode(), name.encode(), title, b"", text.encode(), b""]
    fixed = struct.pack("<16sQQB3xQIQQHHIIII", named or name_of(DOCUMENT, owner, name), counter,
                        writer, 0, 0, version, now, now, *map(len, texts))
    return fixed + b"".join(texts)


def records(n_answered: int, *all_of_them: bytes) -> bytes:
    return follow(RECORDS, struct.pack("<I", n_answered) + b"".join(all_of_them))


class HostileMember:
    def __init__(self, pool: Pool, victim: Instance) -> None:
        text = pool.secret.read_text().strip()
        self.secret = hashlib.blake2b(b"tarn pool member\0" + text.encode(),
                                      digest_size=32).digest()
        self.pool, self.id = pool, int.from_bytes(os.urandom(8), "little") | 1
        self.answer: Callable[[int, bytes], bytes | None] = lambda kind, items: None
        self.heard: list[tuple[int, bytes]] = []
        self.lock = threading.Condition()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.sockets: list[socket.socket] = []
        self.prefix, self.theirs = self.look()
        self.hello = b""
        threading.Thread(target=self.accept, daemon=True).start()
        self.register()
        self.wait(lambda: bool(self.hello), "no instance has connected")
        self.to_victim = self.connect(victim.data_port)

    def redis(self, *words: bytes | str) -> bytes:
        message = b"*%d\r\n" % len(words)
        for w in words:
            w = w if isinstance(w, bytes) else w.encode()
            message += b"$%d\r\n%s\r\n" % (len(w), w)
        with contextlib.closing(self.pool.redis.place.connect(self.pool.redis.port)) as s:
            s.sendall(message + b"QUIT\r\n")
            data = b""
            while piece := s.recv(1 << 16):
                data += piece
        return data

    def look(self) -> tuple[str, dict[str, Any]]:
        """The prefix of the pool's keys, and the record of an instance."""
        ids = next(w for w in self.redis("KEYS", "*").split(b"\r\n") if w.endswith(b":ids"))
        prefix = ids[:-3].decode()
        key = next(w for w in self.redis("KEYS", f"{prefix}i:*").split(b"\r\n") if b":i:" in w)
        one = self.redis("GET", key)
        return prefix, json.loads(one[one.index(b"{"):one.rindex(b"}") + 1])

    def register(self) -> None:
        port = self.listener.getsockname()[1]
        way = self.theirs["address"].rsplit(":", 1)[0]
        made = self.theirs | {"id": f"{self.id:016x}", "name": "hostile",
                              "address": f"{way}:{port}", "documents": ""}
        self.redis("SET", f"{self.prefix}i:{made['id']}", json.dumps(made), "EX", "600")
        self.redis("SADD", f"{self.prefix}ids", made["id"])

    # --- connections ---

    def my_hello(self) -> bytes:
        return HELLO + struct.pack("<IQ", HANDSHAKE_VERSION, self.id) + self.hello[16:56] + \
            os.urandom(32)

    def proof(self, role: bytes, one: bytes, other: bytes) -> bytes:
        digest = hashlib.blake2b(b"tarn pool proof" + role + one + other, key=self.secret,
                                 digest_size=32).digest()
        return PROOF + struct.pack("<I", HANDSHAKE_VERSION) + digest

    def accept(self) -> None:
        while True:
            try:
                s, _ = self.listener.accept()
            except OSError:
                return
            self.sockets.append(s)
            threading.Thread(target=self.serve, args=(s,), daemon=True).start()

    def serve(self, s: socket.socket) -> None:
        """The side of a connection that listens: notes come over it."""
        with contextlib.suppress(OSError, AssertionError):
            theirs, _ = take_frame(s)
            with self.lock:
                self.hello = theirs
                self.lock.notify_all()
            mine = self.my_hello()
            send_frame(s, mine)
            take_frame(s)
            send_frame(s, self.proof(b"B", theirs, mine))
            while True:
                head, payload = take_frame(s)
                if head[1] == WIRE_NOTE:
                    self.take(payload[1], payload[4:])

    def take(self, kind: int, items: bytes) -> None:
        reply = self.answer(kind, items)
        with self.lock:
            self.heard.append((kind, items))
            self.lock.notify_all()
        if reply is not None:
            self.send(reply)

    def connect(self, port: int) -> socket.socket:
        s = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT)
        self.sockets.append(s)
        mine = self.my_hello()
        send_frame(s, mine)
        theirs, _ = take_frame(s)
        send_frame(s, self.proof(b"A", mine, theirs))
        take_frame(s)
        return s

    # --- talk ---

    @staticmethod
    def frame_of(note: bytes) -> bytes:
        head = struct.pack("<BBxxII", WIRE_VERSION, WIRE_NOTE, len(note), crc32c(note))
        return frame(head, note)

    def send(self, note: bytes) -> None:
        self.send_frames(self.frame_of(note))

    def send_frames(self, *frames: bytes) -> None:
        for one in frames:
            self.to_victim.sendall(one)

    def repeat(self, *frames: bytes) -> None:
        """Send these again and again, until this member is closed."""
        def go_on() -> None:
            with contextlib.suppress(OSError):
                while True:
                    self.send_frames(*frames)

        threading.Thread(target=go_on, daemon=True).start()

    def wait(self, what: Callable[[], bool], why: str) -> None:
        with self.lock:
            assert self.lock.wait_for(what, TIMEOUT), why

    def n_heard(self, kind: int) -> int:
        return sum(k == kind for k, _ in self.heard)

    def wait_heard(self, kind: int, n: int = 1) -> None:
        self.wait(lambda: self.n_heard(kind) >= n, f"message {kind} has not come {n} times")

    def close(self) -> None:
        for s in [self.listener, *self.sockets]:
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)
            s.close()

    def __enter__(self) -> "HostileMember":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
