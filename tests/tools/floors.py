#!/usr/bin/env python3
"""floors.py - how deep the includes of each folder go, and which of its files call in a circle.

usage: floors.py [ROOT] [--build DIR]

A floor is a step in the longest chain of includes between the modules (x.c and x.h together) of one
folder. A cycle is a set of modules, each of which calls every other through a chain of functions.
nm reads the calls from the object files in DIR; calls through function pointers are not seen.
"""
from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

FOLDERS = ("base", "kernels", "cache", "engine", "server", "clients", "loadgen")
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)
Graph = dict[str, set[str]]


def module_of(path: str) -> str:
    return path.rsplit(".", 1)[0]


def include_graph(root: Path, files: list[str]) -> Graph:
    graph: Graph = defaultdict(set)
    for name in files:
        graph[module_of(name)] |= {module_of(i) for i in INCLUDE.findall((root / name).read_text())}
    return graph


def call_graph(build: Path, known: set[str]) -> Graph:
    """Edges between modules that call each other, from the symbols of their object files."""
    home: dict[str, str] = {}
    wanted: Graph = defaultdict(set)
    for obj in build.rglob("*.c.o"):
        found = re.match(r"(?:(.*)/)?CMakeFiles/[^/]+\.dir/(.+)\.c\.o$",
                         str(obj.relative_to(build)))
        module = f"{found[1]}/{found[2]}" if found and found[1] else None
        if module not in known:
            continue
        out = subprocess.run(["nm", "-P", str(obj)], check=True, text=True, capture_output=True)
        for line in out.stdout.splitlines():
            symbol, kind = line.split()[:2]
            if kind == "U":
                wanted[module].add(symbol)
            elif kind in "TDBR":
                home[symbol] = module
    return {m: {home[s] for s in symbols if s in home and home[s] != m}
            for m, symbols in wanted.items()}


def components(graph: Graph, nodes: set[str]) -> list[list[str]]:
    """Strongly connected components of more than one node (Tarjan, 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in graph.get(node, ()):
            if other not in nodes:
                continue
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            at = stack.index(node)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    for node in sorted(nodes):
        if node not in index:
            visit(node)
    return found


def n_floors(graph: Graph, nodes: set[str]) -> int:
    depth: dict[str, int] = {}

    def visit(node: str, above: frozenset[str]) -> int:
        if node not in depth:
            below = [visit(n, above | {node}) for n in graph.get(node, ())
                     if n in nodes and n not in above and n != node]
            depth[node] = 1 + max(below, default=0)
        return depth[node]

    return max((visit(n, frozenset()) for n in sorted(nodes)), default=0)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("root", type=Path, nargs="?", default=Path(__file__).resolve().parents[2])
    p.add_argument("--build", type=Path, help="default: ROOT/build")
    args = p.parse_args()
    sys.setrecursionlimit(10000)
    files = [str(f.relative_to(args.root)) for folder in FOLDERS
             for f in sorted((args.root / folder).rglob("*.[ch]"))]
    includes = include_graph(args.root, files)
    compiled = {module_of(f) for f in files if f.endswith(".c")}
    calls = call_graph(args.build or args.root / "build", compiled)
    by_folder: dict[str, set[str]] = defaultdict(set)
    for name in files:
        by_folder[str(Path(name).parent)].add(module_of(name))
    print(f"{'folder':24} {'files':>5} {'lines':>6} {'floors':>6}  cycles of calls")
    for folder, modules in sorted(by_folder.items()):
        mine = [f for f in files if str(Path(f).parent) == folder]
        n_lines = sum(len((args.root / f).read_text().splitlines()) for f in mine)
        cycles = components(calls, modules)
        words = "; ".join(" ".join(Path(m).name for m in c) for c in cycles) or "-"
        print(f"{folder:24} {len(mine):5} {n_lines:6} {n_floors(includes, modules):6}  {words}")


if __name__ == "__main__":
    main()
