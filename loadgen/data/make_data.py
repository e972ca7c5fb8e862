#!/usr/bin/env python3
"""Write the data sets of this directory: documents, questions, conversations, prompts, a trace.

    make_data.py [--out DIR] [--seed N]      default: this directory, seed 1

Everything is invented. The documents come from deploy/demo-model/generate_data.py, with names that
the model never saw in training; the demo model can answer the questions. Equal seeds write equal
bytes. README.md beside this file describes the files.
"""
from __future__ import annotations

import argparse
import json
import random
import sys
from pathlib import Path
from typing import Iterable

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "deploy" / "demo-model"))
import generate_data  # noqa: E402

N_DOCUMENTS, N_FACTS = 48, 5
N_QUESTIONS = 96
N_RETRIEVED = 5
N_CONVERSATIONS = 24
N_TRACE_CHATS = 36
TRACE_SECONDS = 60
BLOCK_TOKENS = 512  # tokens of a trace's hash id
N_TOKENS_MOST = 1800  # tokens of a prompt and its answer: the demo model's context has 2048
LEVEL = 2  # for generate_data.Writer: all phrasings


def write_lines(path: Path, rows: Iterable[dict]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


# --- documents and questions ---

def make_documents(writer: generate_data.Writer) -> list[dict]:
    """Documents with their facts: {entity, title, text, facts: [(relation, value)]}."""
    used: set[str] = set()
    out = []
    for _ in range(N_DOCUMENTS):
        entity = writer.name(used)
        relations = writer.rng.sample(generate_data.RELATIONS, N_FACTS)
        facts = [(relation, writer.value(relation, used)) for relation in relations]
        out.append({"entity": entity, "facts": facts, **writer.document(entity, facts, LEVEL)})
    return out


def make_questions(writer: generate_data.Writer, documents: list[dict]) -> list[dict]:
    """Questions with a retrieval list: first the document with the answer, then others. As in real
    services, some documents are retrieved far more often than others."""
    weights = [1 / rank for rank in range(1, len(documents) + 1)]
    out = []
    for q in range(N_QUESTIONS):
        gold = q % len(documents)
        relation, value = writer.rng.choice(documents[gold]["facts"])
        retrieved = [gold]
        while len(retrieved) < N_RETRIEVED:
            other = writer.rng.choices(range(len(documents)), weights)[0]
            if other not in retrieved:
                retrieved.append(other)
        out.append({"q_id": q,
                    "question": writer.question(relation, documents[gold]["entity"], LEVEL),
                    "gold_doc": gold, "answers": [value], "retrieved": retrieved})
    return out


# --- chats ---

def make_conversations(writer: generate_data.Writer) -> list[dict]:
    """Conversations in ShareGPT's format; the first message contains the document."""
    out = []
    for i in range(N_CONVERSATIONS):
        sample = writer.sample("relation", LEVEL, turns=writer.rng.randint(1, 4), unknown=0.2)
        texts = [t for turn in sample["turns"] for t in (turn["question"], turn["answer"])]
        texts[0] = f"{sample['documents'][0]['text']} {texts[0]}"
        texts[1] = f"According to the document: {texts[1]}"
        out.append({"id": f"c{i}",
                    "conversations": [{"from": "gpt" if k % 2 else "human", "value": text}
                                      for k, text in enumerate(texts)]})
    return out


def make_prompts(questions: list[dict], documents: list[dict]) -> list[dict]:
    """Lines for --workload file: questions, every second one with its documents."""
    rows = []
    for k, q in enumerate(questions[:24]):
        row: dict = {"prompt": q["question"], "output_len": 8 + k % 5 * 8, "timestamp": k / 4}
        if k % 2:
            row["documents"] = [{n: documents[d][n] for n in ("title", "text")}
                                for d in q["retrieved"][:2]]
        rows.append(row)
    return rows


# --- a trace ---

def make_trace(rng: random.Random) -> list[dict]:
    """Conversations in Mooncake's format: each turn's hash ids begin with those of the previous
    turn. A third of the chats begins with one of two shared documents of two blocks."""
    rows = []
    next_id = 2 * 2
    for _ in range(N_TRACE_CHATS):
        at_ms = rng.uniform(0, 0.7 * TRACE_SECONDS) * 1000
        shared = rng.randrange(2) * 2 if rng.random() < 1 / 3 else None
        ids = [shared, shared + 1] if shared is not None else []
        n_tokens = len(ids) * BLOCK_TOKENS
        for _ in range(rng.randint(1, 4)):
            n_tokens += rng.randint(60, 420)
            output = rng.randint(8, 96)
            if n_tokens + output > N_TOKENS_MOST:
                break
            while len(ids) * BLOCK_TOKENS < n_tokens:
                ids.append(next_id)
                next_id += 1
            rows.append({"timestamp": round(at_ms), "input_length": n_tokens,
                         "output_length": output, "hash_ids": list(ids)})
            n_tokens += output
            at_ms += rng.uniform(2000, 9000)
    return sorted(rows, key=lambda row: row["timestamp"])


def write_all(out: Path, seed: int) -> None:
    writer = generate_data.Writer(seed, held_out=True)
    documents = make_documents(writer)
    questions = make_questions(writer, documents)
    trace = make_trace(random.Random(seed))
    (out / "rag").mkdir(parents=True, exist_ok=True)
    write_lines(out / "rag" / "documents.jsonl",
                ({"doc_id": i, "title": d["title"], "text": d["text"]}
                 for i, d in enumerate(documents)))
    write_lines(out / "rag" / "questions.jsonl", questions)
    (out / "conversations.json").write_text(
        "[" + ",\n ".join(json.dumps(c) for c in make_conversations(writer)) + "]\n")
    write_lines(out / "prompts.jsonl", make_prompts(questions, documents))
    write_lines(out / "trace.jsonl", trace)
    (out / "lengths.csv").write_text("num_prefill_tokens,num_decode_tokens\n" + "".join(
        f"{row['input_length']},{row['output_length']}\n" for row in trace))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    write_all(args.out, args.seed)


if __name__ == "__main__":
    main()
