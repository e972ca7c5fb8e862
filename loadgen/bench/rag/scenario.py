"""scenario.py - documents, their popularity, and the requests of a run.

Documents are those of a JSON lines file {title, text}, or four consecutive paragraphs of an article
of the shared set rag-derived-squad2dev each. Popularity is RAGPulse's (a recorded week of a RAG
service): its passages are ranked by how often they were retrieved, and each of the N most frequent
ones stands for one of N documents. Requests have the lists of consecutive recorded requests, in the
lists' order and without passages of a lower rank, from a place that the seed draws: popularity,
pairs and their change over time are the recorded ones. Which document has which rank is drawn by
the seed. Without the recording, lists follow a Zipf law (LISTS_ZIPF).

A folder of a scenario has the two files that tarn-loadgen's workload `rag` reads.
"""
from __future__ import annotations

import json
import math
import os
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import common  # noqa: E402, F401
from common import REPO, program  # noqa: E402, F401

SQUAD, RAGPULSE = "rag-derived-squad2dev", "traces-ragpulse"
PARAGRAPHS = 4
SIM_IDS_PER_WORD = 1.3  # loadgen/sim/ids.h
BLOCK = 32              # tokens of a KV block; a document begins a new one
LISTS_ZIPF = 1.0
N_LISTS_PER_DOCUMENT = 3  # without a recording: lists that begin with one document


def shared_data(given: Path | None) -> Path:
    if given:
        return given
    shared = os.environ.get("TARN_SHARED")
    return (Path(shared) if shared else REPO.parent / "shared") / "data"


def read_lines(path: Path) -> list[dict]:
    with path.open(encoding="utf-8") as f:
        return [json.loads(line) for line in f if line.strip()]


def write_lines(path: Path, rows: list[dict]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


# --- documents and questions ---

class Corpus:
    def __init__(self, documents: list[dict], questions: list[list[str]], source: str) -> None:
        self.documents = documents  # {title, text}
        self.questions = questions  # of each document
        self.source = source


def squad(data: Path, n_paragraphs: int = PARAGRAPHS) -> Corpus:
    """So many consecutive paragraphs of an article are one document."""
    paragraphs = read_lines(data / SQUAD / "documents.jsonl")
    documents: list[dict] = []
    place: dict[int, int] = {}
    n_here = 0
    for p in paragraphs:
        if not documents or documents[-1]["title"] != p["title"] or n_here == n_paragraphs:
            documents.append({"title": p["title"], "text": p["text"]})
            n_here = 1
        else:
            documents[-1]["text"] += "\n" + p["text"]
            n_here += 1
        place[p["doc_id"]] = len(documents) - 1
    questions: list[list[str]] = [[] for _ in documents]
    for q in read_lines(data / SQUAD / "questions.jsonl"):
        if q["gold_doc"] in place:
            questions[place[q["gold_doc"]]].append(q["question"])
    return Corpus(documents, questions, f"{SQUAD}, {n_paragraphs} paragraphs each")


def own(documents: Path, questions: Path | None) -> tuple[Corpus, list[list[int]] | None]:
    """The documents of a file, and the lists of documents that its questions name, if they do."""
    rows = read_lines(documents)
    ids = {row.get("id", row.get("doc_id", i)): i for i, row in enumerate(rows)}
    texts: list[list[str]] = [[] for _ in rows]
    lists: list[list[int]] = []
    for q in read_lines(questions) if questions else []:
        listed = q.get("docs", q.get("retrieved", q.get("bm25_top5", [])))
        named = [ids[d] for d in listed if d in ids]
        if named:
            lists.append(named)
            texts[named[0]].append(q["question"])
    corpus = Corpus([{"title": r.get("title", ""), "text": r["text"]} for r in rows], texts,
                    str(documents))
    return corpus, lists or None


# --- popularity ---

def recorded_lists(data: Path, n_documents: int) -> list[list[int]] | None:
    """The lists of RAGPulse in the order of time; passage of rank r is document r, and passages
    behind the last document's rank are left out."""
    path = data / RAGPULSE / "0_trace.jsonl"
    if not path.exists():
        return None
    rows = sorted(read_lines(path), key=lambda row: float(row["timestamp"]))
    lists = [row["hash_ids"]["passages_ids"] for row in rows]
    uses: dict[int, int] = {}
    for one in lists:
        for p in one:
            uses[p] = uses.get(p, 0) + 1
    ranked = sorted(uses, key=lambda p: (-uses[p], p))[:n_documents]
    rank = {p: r for r, p in enumerate(ranked)}
    return [[rank[p] for p in one if p in rank] for one in lists]


def zipf_lists(n_documents: int, longest: int, rng: random.Random) -> list[list[int]]:
    """Lists to draw from: a few begin with each document, more popular documents are in more."""
    weights = [1 / (r + 1) ** LISTS_ZIPF for r in range(n_documents)]
    lists = []
    for first in range(n_documents):
        for _ in range(N_LISTS_PER_DOCUMENT):
            one = [first]
            while len(one) < min(longest, n_documents):
                d = rng.choices(range(n_documents), weights)[0]
                if d not in one:
                    one.append(d)
            lists += [one] * max(1, round(n_documents * weights[first]))
    return lists


def cut(one: list[int], k: int) -> list[int] | None:
    """The first k different documents; None: there are fewer."""
    kept = list(dict.fromkeys(one))[:k]
    return kept if len(kept) == k else None


# --- a scenario ---

def n_tokens(text: str) -> int:
    """Tokens as the simulator counts them."""
    return math.ceil(len(text.split()) * SIM_IDS_PER_WORD)


def path_tokens(lists: list[list[int]], sizes: list[int]) -> int:
    """Tokens of all different nodes of the tree of ordered lists, in whole blocks."""
    nodes = {tuple(one[:i + 1]) for one in lists for i in range(len(one))}
    return sum(-(-sizes[node[-1]] // BLOCK) * BLOCK for node in nodes)


class Scenario:
    """The requests of a run: lists of documents and questions."""

    def __init__(self, corpus: Corpus, lists: list[list[int]], popularity: str, k: int, count: int,
                 seed: int) -> None:
        rng = random.Random(seed)
        names = list(range(len(corpus.documents)))
        if popularity != "questions":
            rng.shuffle(names)  # which document has which rank differs by seed
        usable = [c for c in (cut(one, k) for one in lists) if c]
        if not usable:
            raise SystemExit(f"no list has {k} different documents")
        self.corpus, self.popularity, self.k, self.count, self.seed = (corpus, popularity, k, count,
                                                                       seed)
        start = rng.randrange(len(usable))
        self.lists = [[names[d] for d in usable[(start + i) % len(usable)]] for i in range(count)]
        asked = [corpus.questions[one[0]] or ["What does the text say?"] for one in self.lists]
        self.questions = [rng.choice(texts) for texts in asked]

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        write_lines(folder / "documents.jsonl", [{"doc_id": i, **d}
                                                 for i, d in enumerate(self.corpus.documents)])
        write_lines(folder / "questions.jsonl",
                    [{"q_id": i, "question": q, "retrieved": one}
                     for i, (q, one) in enumerate(zip(self.questions, self.lists))])
        return folder

    def sizes(self) -> list[int]:
        return [n_tokens(d["text"]) for d in self.corpus.documents]

    def describe(self) -> dict:
        sizes = self.sizes()
        uses = [0] * len(sizes)
        for one in self.lists:
            for d in one:
                uses[d] += 1
        top = sorted(uses, reverse=True)[:max(1, round(0.03 * len(uses)))]
        seen: set[tuple[int, ...]] = set()
        hit = total = 0
        for one in self.lists:
            known = True
            for i, d in enumerate(one):
                known = known and tuple(one[:i + 1]) in seen
                hit += sizes[d] if known else 0
                total += sizes[d]
            seen.update(tuple(one[:i + 1]) for i in range(len(one)))
        return {"documents": self.corpus.source, "n_documents": len(sizes),
                "mean_document_tokens": sum(sizes) / len(sizes), "top_k": self.k,
                "popularity": self.popularity, "n_requests": self.count, "seed": self.seed,
                "top_3_percent_of_documents_get": sum(top) / sum(uses),
                "path_tokens": path_tokens(self.lists, sizes),
                "hit_share_of_an_endless_cache": hit / total}


def load(args, n_paragraphs: int = PARAGRAPHS) -> tuple[Corpus, list[list[int]], str]:
    """Documents and lists by the command line."""
    data = shared_data(args.data)
    lists = None
    if args.documents:
        corpus, lists = own(args.documents, args.questions)
    elif (data / SQUAD / "documents.jsonl").exists():
        corpus = squad(data, n_paragraphs)
    else:
        raise SystemExit(f"{data} has no {SQUAD}: give --documents FILE.jsonl, or --data DIR")
    if lists:
        return corpus, lists, "questions"
    lists = recorded_lists(data, len(corpus.documents))
    if lists:
        return corpus, lists, RAGPULSE
    return corpus, zipf_lists(len(corpus.documents), 5, random.Random(args.seed)), "zipf"
