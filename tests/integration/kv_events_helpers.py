"""A router's side of KV events: subscribes, hashes token ids as llm-d's indexer does, and keeps
what the instance holds. Every rule of docs/user/routers.md is asserted on the way.

llm-d's key of a block is FNV-1a (64 bits) over the CBOR of [key of the block before, token ids,
extra]; before the first block stands the key of the model's name.
"""
from __future__ import annotations

from collections import Counter
from typing import Any

import msgpack
import zmq

BLOCK = 16
FIRST_HASH, LAST_HASH = 1 << 62, (1 << 63) - 1
POLL_MS = 50


def cbor(value: Any) -> bytes:
    """The canonical CBOR of numbers, texts, lists and None."""
    if value is None:
        return b"\xf6"
    if isinstance(value, int):
        major, n, rest = 0, value, b""
    elif isinstance(value, str):
        major, n, rest = 3, len(value.encode()), value.encode()
    else:
        major, n, rest = 4, len(value), b"".join(cbor(v) for v in value)
    for most, code, size in ((23, n, 0), (0xff, 24, 1), (0xffff, 25, 2), (0xffffffff, 26, 4),
                             (0xffffffffffffffff, 27, 8)):
        if n <= most:
            return bytes([major << 5 | code]) + (n.to_bytes(size, "big") if size else b"") + rest
    raise ValueError(value)


def fnv64a(data: bytes) -> int:
    h = 0xcbf29ce484222325
    for byte in data:
        h = (h ^ byte) * 0x100000001b3 & 0xffffffffffffffff
    return h


def block_keys(model: str, ids: list[int], salt: str | None = None,
               adapter: str | None = None) -> list[int]:
    """The router's keys of the whole blocks of a prompt."""
    key, keys = first_key(model), []
    for i in range(0, len(ids) - BLOCK + 1, BLOCK):
        extra = [x for x in (adapter, salt if i == 0 else None) if x]
        key = fnv64a(cbor([key, ids[i:i + BLOCK], extra or None]))
        keys.append(key)
    return keys


def first_key(model: str) -> int:
    return fnv64a(cbor([fnv64a(b""), None, model]))


class Router:
    def __init__(self, endpoint: str, replay: str | None = None) -> None:
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.SUB)
        self.socket.set_hwm(0)
        self.socket.subscribe(b"kv@")
        self.socket.connect(endpoint)
        self.replay = replay
        self.topic = ""
        self.next: int | None = None  # the sequence number expected; None: any
        self.n_cleared = 0
        self.events: Counter[str] = Counter()
        self.forget()

    def forget(self) -> None:
        self.key_of: dict[int, int] = {}              # engine hash -> router's key
        self.held: set[tuple[int, str]] = set()       # (engine hash, medium)

    def close(self) -> None:
        self.context.destroy(linger=0)

    # --- the wire ---

    def read(self, ms: int = POLL_MS) -> int:
        """Take what has come within ms; return the number of batches."""
        n = 0
        while self.socket.poll(ms):
            topic, sequence, payload = self.socket.recv_multipart()
            self.topic = topic.decode()
            assert len(sequence) == 8
            self.take(int.from_bytes(sequence, "big"), payload)
            n += 1
        return n

    def take(self, sequence: int, payload: bytes) -> None:
        assert self.next in (None, sequence), f"batch {sequence} instead of {self.next}"
        self.next = sequence + 1
        seconds, events, rank = msgpack.unpackb(payload)
        assert isinstance(seconds, float) and seconds > 1.6e9 and rank == 0 and events
        for event in events:
            self.events[event["type"]] += 1
            getattr(self, event["type"])(event)

    def ask_again(self, first: int) -> list[tuple[int, bytes]]:
        """What the replay socket answers."""
        s = self.context.socket(zmq.DEALER)
        s.connect(self.replay)
        s.send_multipart([b"", first.to_bytes(8, "big")])
        answers = []
        while True:
            assert s.poll(10000), "no end of the replay"
            empty, sequence, payload = s.recv_multipart()
            assert empty == b"" and len(sequence) == 8
            if sequence == b"\xff" * 8:
                assert payload == b""
                s.close()
                return answers
            answers.append((int.from_bytes(sequence, "big"), payload))

    # --- events ---

    def BlockStored(self, e: dict[str, Any]) -> None:
        assert set(e) == {"type", "block_hashes", "parent_block_hash", "token_ids", "block_size",
                          "lora_id", "medium", "lora_name", "extra_keys", "group_idx",
                          "kv_cache_spec_kind"}, e
        hashes, ids, extra = e["block_hashes"], e["token_ids"], e["extra_keys"]
        assert e["block_size"] == BLOCK and len(ids) == BLOCK * len(hashes) == BLOCK * len(extra)
        assert e["lora_id"] is None and e["group_idx"] == 0
        name = e["lora_name"]
        assert name is None or all(x[0] == name for x in extra), e
        assert e["kv_cache_spec_kind"] == "full_attention" and e["medium"] in ("GPU", "CPU", "DISK")
        parent = e["parent_block_hash"]
        key = first_key(self.topic.split("@")[2]) if parent is None else self.key_of[parent]
        for i, h in enumerate(hashes):
            assert FIRST_HASH <= h <= LAST_HASH
            assert (h, e["medium"]) not in self.held, "stored twice"
            key = fnv64a(cbor([key, ids[i * BLOCK:(i + 1) * BLOCK], extra[i]]))
            assert self.key_of.get(h, key) == key, "one hash for two blocks"
            self.key_of[h] = key
            self.held.add((h, e["medium"]))

    def BlockRemoved(self, e: dict[str, Any]) -> None:
        assert set(e) == {"type", "block_hashes", "medium", "group_idx"}, e
        for h in e["block_hashes"]:
            if self.n_cleared == 0 and h not in self.key_of:
                continue  # of before this router came
            self.held.remove((h, e["medium"]))

    def AllBlocksCleared(self, e: dict[str, Any]) -> None:
        assert set(e) == {"type"} and not self.held
        self.n_cleared += 1
        self.key_of.clear()

    # --- what it knows ---

    def count(self, medium: str) -> int:
        return sum(m == medium for _, m in self.held)

    def keys(self, *media: str) -> set[int]:
        return {self.key_of[h] for h, m in self.held if not media or m in media}

    def hit_tokens(self, ids: list[int], salt: str | None = None) -> int:
        """Tokens of a prompt that the instance has, as the router sees it."""
        known, n = self.keys(), 0
        for key in block_keys(self.topic.split("@")[2], ids, salt):
            if key not in known:
                break
            n += BLOCK
        return n
