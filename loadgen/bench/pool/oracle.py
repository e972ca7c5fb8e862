"""oracle.py - what ideal and simple caches would find in a workload, counted from its token ids.

`endless`: a cache that forgets nothing; its only misses are first uses. `best`: one shared cache of
a given size that knows the future (Belady: the victim is the block that is used again last). `lru`:
one or several caches with the usual replacement. No time passes: a request finds what earlier ones
computed, at once, and nothing is kept for requests that run.
"""
from __future__ import annotations

import heapq
from collections import OrderedDict
from typing import Callable

BLOCK = 32


class Paths:
    """The prompts of a workload as chains of blocks: equal ids mean equal prefixes."""

    def __init__(self, prompts: list[list[int]]) -> None:
        self.n_tokens = sum(map(len, prompts))
        self.distinct_tokens, endless = 0, 0
        self.blocks: list[list[int]] = []  # of each prompt; without its last, open block
        seen: set[int] = set()
        for ids in prompts:
            chain, n_known, is_known, blocks = 0, 0, True, []
            for i, token in enumerate(ids):
                chain = hash((chain, token))
                is_known = is_known and chain in seen
                n_known += is_known
                self.distinct_tokens += chain not in seen
                seen.add(chain)
                if (i + 1) % BLOCK == 0 and i + 1 < len(ids):
                    blocks.append(chain)
            endless += min(n_known, len(ids) - 1)  # the last token is always computed
            self.blocks.append(blocks)
        self.endless = endless / self.n_tokens

    def best(self, n_blocks: int) -> float:
        """Hit share of a shared cache of that size that knows the future."""
        uses: dict[int, list[int]] = {}
        for i, blocks in enumerate(self.blocks):
            for b in blocks:
                uses.setdefault(b, []).append(i)
        for at in uses.values():
            at.reverse()  # the next use is the last element
        never = len(self.blocks)
        kept: dict[int, int] = {}  # block -> its next use
        victims: list[tuple[int, int, int]] = []
        n_hits = 0
        for blocks in self.blocks:
            n_hits += leading(blocks, kept)
            for depth, b in enumerate(blocks):
                uses[b].pop()
                kept[b] = uses[b][-1] if uses[b] else never
                heapq.heappush(victims, (-kept[b], -depth, b))
            while len(kept) > n_blocks:
                use, _, b = heapq.heappop(victims)
                if kept.get(b) == -use:  # else the entry is an older one
                    del kept[b]
        return BLOCK * n_hits / self.n_tokens

    def lru(self, n_blocks: int, n_caches: int = 1,
            cache_of: Callable[[int], int] = lambda i: 0) -> float:
        """Hit share of caches of n_blocks each; cache_of: which one gets request i."""
        caches: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(n_caches)]
        n_hits = 0
        for i, blocks in enumerate(self.blocks):
            kept = caches[cache_of(i)]
            n_hits += leading(blocks, kept)
            for b in reversed(blocks):  # a block is evicted after those behind it
                kept[b] = None
                kept.move_to_end(b)
            while len(kept) > n_blocks:
                kept.popitem(last=False)
        return BLOCK * n_hits / self.n_tokens


def leading(blocks: list[int], kept: dict[int, int] | OrderedDict[int, None]) -> int:
    n = 0
    for b in blocks:
        if b not in kept:
            break
        n += 1
    return n
