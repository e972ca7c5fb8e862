#!/usr/bin/env python3
"""Compute the share of the documents' text that a prefix cache finds, for several orders.

    documents_order.py DATA [--documents N] [--retrieved K] [--server PROGRAM]

DATA is a folder with documents.jsonl and questions.jsonl (shared rag-derived-*). The questions are
asked in their order, each with the first K (3) of its own list of retrieved documents. As in
tarn-loadgen, only questions count whose whole list is among the first N documents (0: all). Four
orders are compared, with a cache that never evicts:

    given    best document first, as retrieved
    sorted   by document id
    cache    the longest cached path first, the rest as given (`documents_order`)
    any      an upper bound: as if a document's KV did not depend on the text before it

With --server the questions are also sent to a real server in the first three orders (with random
weights, so that answers have no meaning), and the share of prompt tokens that it found is printed.
"""
from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, Iterable

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "tests" / "integration"))
ORDERS = ("given", "sorted", "cache")

Tree = dict[int, Any]


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


def text_of(document: dict[str, Any]) -> str:
    return f"### {document['title']}\n{document['text']}\n"


def longest_path(tree: Tree, documents: list[int], size: list[int]) -> tuple[int, list[int]]:
    """Bytes and documents of the path in the tree that is longest, the first of equals."""
    best: tuple[int, list[int]] = (0, [])
    for d in documents:
        if d in tree:
            n, path = longest_path(tree[d], [x for x in documents if x != d], size)
            if n + size[d] > best[0]:
                best = (n + size[d], [d, *path])
    return best


def arrange(order: str, documents: list[int], tree: Tree, size: list[int]) -> list[int]:
    if order == "sorted":
        return sorted(documents)
    if order == "cache":
        path = longest_path(tree, documents, size)[1]
        return path + [d for d in documents if d not in path]
    return documents


def computed_share(order: str, asked: Iterable[list[int]], size: list[int]) -> float:
    tree: Tree = {}
    seen: set[int] = set()
    n_all = n_found = 0
    for documents in asked:
        here, known = tree, True
        for d in arrange(order, documents, tree, size):
            known &= d in here
            n_all += size[d]
            n_found += size[d] if (d in seen if order == "any" else known) else 0
            here = here.setdefault(d, {})
        seen.update(documents)
    return n_found / n_all


def make_model(folder: Path) -> Path:
    """The demo model's shape with room for long prompts; no weights."""
    demo, model = REPO / "deploy" / "demo-model", folder / "model"
    model.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(demo / name, model / name)
    config = json.loads((demo / "config.json").read_text())
    config.update(max_position_embeddings=16384, num_hidden_layers=1, hidden_size=64,
                  intermediate_size=64, num_attention_heads=2, num_key_value_heads=1)
    (model / "config.json").write_text(json.dumps(config))
    return model


def served_share(program: str, order: str, asked: list[list[int]], documents: list[dict[str, Any]],
                 questions: list[str]) -> tuple[float, int]:
    """The share of prompt tokens that a new server found, and how many it evicted."""
    from http_helpers import Server
    n_all = n_found = 0
    with tempfile.TemporaryDirectory() as folder:
        model = make_model(Path(folder))
        with Server([program, "--model", str(model), "--load-format", "dummy", "--port", "0",
                     "--no-profile-cost", "--kv-device-bytes", "512M", "--cache-dir",
                     folder]) as server:
            for ids, question in zip(asked, questions):
                ids = sorted(ids) if order == "sorted" else ids
                usage = server.post("/v1/chat/completions", {
                    "messages": [{"role": "user", "content": question}], "max_tokens": 1,
                    "documents": [{k: documents[i][k] for k in ("title", "text")} for i in ids],
                    "documents_order": "cache" if order == "cache" else "given"})["usage"]
                n_all += usage["prompt_tokens"]
                n_found += usage["prompt_tokens_details"]["cached_tokens"]
            evicted = server.metrics()['tarn:kv_blocks_evicted_total{tier="device"}']
    return n_found / n_all, int(evicted)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--documents", type=int, default=0, help="only the first N; 0: all")
    parser.add_argument("--retrieved", type=int, default=3, help="documents for a question")
    parser.add_argument("--questions", type=int, default=0, help="only the first N; 0: all")
    parser.add_argument("--server", help="tarn-server, to be asked too")
    args = parser.parse_args()

    documents = read_lines(args.data / "documents.jsonl")
    documents = documents[:args.documents or len(documents)]
    place = {d["doc_id"]: i for i, d in enumerate(documents)}
    size = [len(text_of(d).encode()) for d in documents]
    rows = [q for q in read_lines(args.data / "questions.jsonl")
            if q["bm25_top5"] and all(d in place for d in q["bm25_top5"])]
    rows = rows[:args.questions or len(rows)]
    asked = [[place[d] for d in q["bm25_top5"][:args.retrieved]] for q in rows]
    print(f"{len(asked)} questions, {args.retrieved} of {len(documents)} documents each")
    for order in (*ORDERS, "any"):
        line = f"{order:8}{100 * computed_share(order, asked, size):5.1f} % of document text"
        if args.server and order != "any":
            found, evicted = served_share(args.server, order, asked, documents,
                                          [q["question"] for q in rows])
            line += f", {100 * found:5.1f} % of prompt tokens found ({evicted} blocks evicted)"
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
