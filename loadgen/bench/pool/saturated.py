"""saturated.py - what ideal caches would find with a fixed number of requests inside.

oracle.py counts as if no time passed. Here requests run: one that runs holds its blocks, at most so
many run on a server at a time, and a request that needs what another one computes waits for it. A
server's running requests share its time evenly; a token takes one unit of it, a request
REQUEST_TOKENS beside its tokens. Nothing else takes time: no lookup, no pull, no copy.
"""
from __future__ import annotations

from collections import Counter, deque
from typing import Callable

from oracle import BLOCK, Paths, leading

REQUEST_TOKENS = 30


class Cache:
    """Blocks with the time of their last use. Those of running requests stay."""

    def __init__(self, n_blocks: int) -> None:
        self.n_blocks = n_blocks
        self.used: dict[int, int] = {}  # in the order of use
        self.pins: Counter[int] = Counter()
        self.n_private = 0

    def use(self, blocks: list[int]) -> None:
        for b in reversed(blocks):  # a block is evicted after those behind it
            self.used.pop(b, None)
            self.used[b] = 0

    def hold(self, blocks: list[int], delta: int) -> None:
        for b in blocks:
            self.pins[b] += delta

    def evict(self, next_use: Callable[[int], int] | None) -> None:
        """The least recently used ones; with next_use those that are used again last."""
        n = len(self.used) + self.n_private - self.n_blocks
        if n <= 0:
            return
        free = [b for b in self.used if self.pins[b] <= 0]
        if next_use:
            free.sort(key=next_use, reverse=True)
        for b in free[:n]:
            del self.used[b]

    def n_held(self) -> int:
        return self.n_private + sum(n > 0 for n in self.pins.values())


class Running:
    def __init__(self, blocks: list[int], n_found: int, n_tokens: int) -> None:
        self.blocks, self.n_found = blocks, n_found
        self.n_private = -(-n_tokens // BLOCK) - n_found
        self.left = n_tokens - n_found * BLOCK + REQUEST_TOKENS


class Saturated:
    """The requests of a workload over servers, with n_inside of them at a time."""

    def __init__(self, paths: Paths, lengths: list[int], server_of: Callable[[int], int],
                 n_servers: int, n_run: int, n_inside: int) -> None:
        self.paths, self.lengths, self.server_of = paths, lengths, server_of
        self.n_servers, self.n_run, self.n_inside = n_servers, n_run, n_inside

    def run(self, n_blocks: int, is_shared: bool, knows_future: bool = False) -> dict:
        """is_shared: one cache of n_blocks for all servers; else each has a part."""
        n_caches = 1 if is_shared else self.n_servers
        caches = [Cache(n_blocks // n_caches) for _ in range(n_caches)]
        self.cache_of = [caches[i % n_caches] for i in range(self.n_servers)]
        self.queues: list[deque[int]] = [deque() for _ in range(self.n_servers)]
        self.running: list[list[Running]] = [[] for _ in range(self.n_servers)]
        self.coming: set[tuple[int, int]] = set()  # blocks that are being computed
        self.uses: dict[int, list[int]] = {}
        for i, blocks in enumerate(self.paths.blocks):
            for b in blocks:
                self.uses.setdefault(b, []).append(i)
        for at in self.uses.values():
            at.reverse()
        self.next_use = self.next_use_of if knows_future else None
        self.n_found = n_ended = n_begun = 0
        now = held = run = 0.0
        while n_ended < len(self.lengths):
            while n_begun < len(self.lengths) and n_begun - n_ended < self.n_inside:
                self.queues[self.server_of(n_begun)].append(n_begun)
                n_begun += 1
            for i in range(self.n_servers):
                self.admit(i)
            step = min(r.left * len(some) for some in self.running for r in some)
            now += step
            held += step * sum(c.n_held() for c in caches)
            run += step * sum(map(len, self.running))
            n_ended += sum(self.advance(i, step) for i in range(self.n_servers))
        return {"hit_share": BLOCK * self.n_found / self.paths.n_tokens, "held_blocks": held / now,
                "running": run / now, "requests_per_token_time": len(self.lengths) / now}

    def next_use_of(self, block: int) -> int:
        return self.uses[block][-1] if self.uses[block] else len(self.lengths)

    def admit(self, server: int) -> None:
        cache, queue = self.cache_of[server], self.queues[server]
        while queue and len(self.running[server]) < self.n_run:
            blocks = self.paths.blocks[queue[0]]
            n = leading(blocks, cache.used)
            if n < len(blocks) and (id(cache), blocks[n]) in self.coming:
                return  # another request computes it
            r = Running(blocks, n, self.lengths[queue.popleft()])
            self.n_found += n
            self.running[server].append(r)
            for b in blocks:
                self.uses[b].pop()
            cache.hold(blocks[:n], 1)
            cache.use(blocks[:n])
            cache.n_private += r.n_private
            cache.evict(self.next_use)
            self.coming |= {(id(cache), b) for b in blocks[n:]}

    def advance(self, server: int, step: float) -> int:
        """A step passes. Returns the number of requests that end."""
        some, cache = self.running[server], self.cache_of[server]
        for r in some:
            r.left -= step / len(some)
        ended = [r for r in some if r.left < 1e-6]
        for r in ended:
            some.remove(r)
            cache.n_private -= r.n_private
            cache.hold(r.blocks[:r.n_found], -1)
            cache.use(r.blocks)
            self.coming -= {(id(cache), b) for b in r.blocks[r.n_found:]}
        cache.evict(self.next_use)
        return len(ended)
