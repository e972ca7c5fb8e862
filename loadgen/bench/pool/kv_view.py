"""kv_view.py - what one server holds, followed by its KV events: ZeroMQ (PUB to SUB, ZMTP 3.0 over
TCP) and msgpack as vLLM sends them, written out here so that the router needs no package.

An event batch is three frames: topic, sequence (8 bytes, big endian), and a msgpack array [time,
events, rank]. The view finds the blocks of a prompt by the ids in the events; the server's hashes
are only names.
"""
from __future__ import annotations

import asyncio
import struct

GREETING = (b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\0") + b"\0" +
            bytes(31))
MORE, LONG, COMMAND = 1, 2, 4
FRAME_MAX = 64 << 20
RETRY_S = 0.2


# --- msgpack ---

def unpack(data: bytes) -> object:
    value, at = unpack_at(data, 0)
    if at != len(data):
        raise ValueError("bytes behind the msgpack value")
    return value


SIZED = {0xc4: (">B", "bin"), 0xc5: (">H", "bin"), 0xc6: (">I", "bin"),
         0xd9: (">B", "str"), 0xda: (">H", "str"), 0xdb: (">I", "str"),
         0xdc: (">H", "array"), 0xdd: (">I", "array"), 0xde: (">H", "map"), 0xdf: (">I", "map")}
NUMBERS = {0xca: ">f", 0xcb: ">d", 0xcc: ">B", 0xcd: ">H", 0xce: ">I", 0xcf: ">Q", 0xd0: ">b",
           0xd1: ">h", 0xd2: ">i", 0xd3: ">q"}
PLAIN = {0xc0: None, 0xc2: False, 0xc3: True}


def unpack_at(data: bytes, at: int) -> tuple[object, int]:
    kind = data[at]
    at += 1
    if kind < 0x80 or kind >= 0xe0:
        return (kind if kind < 0x80 else kind - 0x100), at
    if kind in PLAIN:
        return PLAIN[kind], at
    if kind in NUMBERS:
        return struct.unpack_from(NUMBERS[kind], data, at)[0], at + struct.calcsize(NUMBERS[kind])
    if kind in SIZED:
        length, what = SIZED[kind]
        n = struct.unpack_from(length, data, at)[0]
        at += struct.calcsize(length)
    elif kind < 0x90:
        n, what = kind & 0x0f, "map"
    elif kind < 0xa0:
        n, what = kind & 0x0f, "array"
    elif kind < 0xc0:
        n, what = kind & 0x1f, "str"
    else:
        raise ValueError(f"msgpack type {kind:#x}")
    if what in ("bin", "str"):
        raw = data[at:at + n]
        return (raw if what == "bin" else raw.decode()), at + n
    items = []
    for _ in range(n if what == "array" else 2 * n):
        item, at = unpack_at(data, at)
        items.append(item)
    return (items if what == "array" else dict(zip(items[::2], items[1::2]))), at


# --- the blocks of one server ---

class KvView:
    def __init__(self) -> None:
        self.nodes: dict[object, tuple[tuple, set[str]]] = {}  # hash -> place, media
        self.places: dict[tuple, object] = {}  # (hash of the block before, ids) -> hash
        self.block_size = 0
        self.n_events = self.n_lost = 0
        self.next_sequence: int | None = None

    def n_blocks(self) -> int:
        return len(self.nodes)

    def take(self, sequence: int, payload: bytes) -> None:
        if self.next_sequence is not None and sequence != self.next_sequence:
            self.n_lost += abs(sequence - self.next_sequence)
        self.next_sequence = sequence + 1
        for event in unpack(payload)[1]:
            self.n_events += 1
            if event["type"] == "BlockStored":
                self.stored(event)
            elif event["type"] == "BlockRemoved":
                for block in event["block_hashes"]:
                    self.removed(block, event["medium"])
            elif event["type"] == "AllBlocksCleared":
                self.nodes.clear()
                self.places.clear()

    def stored(self, event: dict) -> None:
        """The blocks of an event follow each other."""
        parent, ids, n = event["parent_block_hash"], event["token_ids"], event["block_size"]
        self.block_size = n
        for i, block in enumerate(event["block_hashes"]):
            place = (parent, *ids[i * n:(i + 1) * n])
            self.places[place] = block
            self.nodes.setdefault(block, (place, set()))[1].add(event["medium"])
            parent = block

    def removed(self, block: object, medium: str) -> None:
        place, media = self.nodes.get(block, (None, set()))
        media.discard(medium)
        if place and not media:
            del self.nodes[block]
            del self.places[place]

    def n_held(self, ids: list[int]) -> int:
        """Tokens of the prompt's beginning that lie on this server."""
        at, n, parent = 0, self.block_size, None
        while n and (block := self.places.get((parent, *ids[at:at + n]))) is not None:
            at, parent = at + n, block
        return at


# --- the subscriber ---

async def read_frame(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    flags = (await reader.readexactly(1))[0]
    n = int.from_bytes(await reader.readexactly(8 if flags & LONG else 1), "big")
    if n > FRAME_MAX:
        raise ValueError(f"a frame of {n} bytes")
    return flags, await reader.readexactly(n)


async def subscribe(host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(GREETING)
    theirs = await reader.readexactly(len(GREETING))
    if theirs[0] != 0xff or theirs[10] < 3:
        raise ValueError("the publisher does not speak ZMTP 3")
    ready = b"\x05READY" + b"\x0bSocket-Type" + struct.pack(">I", 3) + b"SUB"
    writer.write(bytes([COMMAND, len(ready)]) + ready)
    flags, _ = await read_frame(reader)
    if not flags & COMMAND:
        raise ValueError("no READY of the publisher")
    writer.write(b"\x00\x01\x01")  # a message of one byte: subscribe to all topics
    return reader, writer


async def follow(address: str, view: KvView) -> None:
    """Follow a publisher without end; a lost connection is made again."""
    host, port = address.removeprefix("tcp://").rsplit(":", 1)
    while True:
        try:
            reader, _ = await subscribe(host, int(port))
            while True:
                parts, flags = [], MORE
                while flags & MORE:
                    flags, body = await read_frame(reader)
                    if not flags & COMMAND:
                        parts.append(body)
                if len(parts) == 3:
                    view.take(int.from_bytes(parts[1], "big"), parts[2])
        except (OSError, asyncio.IncompleteReadError):
            await asyncio.sleep(RETRY_S)
