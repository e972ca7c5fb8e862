#!/usr/bin/env python3
"""Draw a trace in RAGPulse's format from a set of documents with questions.

Questions are drawn by a Zipf law; a request's documents are the first K of the question's own
retrieval list, in its order. With --shift the popularities are drawn again after half of the
requests.

    draw_trace.py loadgen/data/rag OUT --documents 3 --zipf 1 --requests 6000
    tarn-cachesim OUT --trace-format ragpulse
"""
import argparse
import json
import os
import random
import sys

TOKENS_PER_WORD = 1.3


def read_lines(path):
    with open(path, encoding="utf-8") as f:
        return [json.loads(line) for line in f if line.strip()]


def write_lines(path, rows):
    with open(path, "w", encoding="utf-8") as f:
        f.writelines(json.dumps(row) + "\n" for row in rows)


def draw(questions, args, rng):
    """Yield the documents of each request."""
    weights = [1 / rank ** args.zipf for rank in range(1, len(questions) + 1)]
    rng.shuffle(questions)
    for i in range(args.requests):
        if args.shift and i == args.requests // 2:
            rng.shuffle(questions)
        question = rng.choices(questions, weights)[0]
        yield (question.get("retrieved") or question["bm25_top5"])[: args.documents]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", help="folder with documents.jsonl and questions.jsonl")
    parser.add_argument("out", help="folder to make")
    parser.add_argument("--documents", type=int, default=5, help="of a request, at most 5")
    parser.add_argument("--zipf", type=float, default=1.0, help="exponent")
    parser.add_argument("--requests", type=int, default=6000)
    parser.add_argument("--shift", action="store_true", help="deal popularity anew at half time")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    for name in ("documents.jsonl", "questions.jsonl"):
        if not os.path.isfile(os.path.join(args.data, name)):
            print(f"draw_trace.py: {args.data}: holds no {name} (a set that comes with the "
                  "repository: loadgen/data/rag)", file=sys.stderr)
            sys.exit(2)
    documents = read_lines(os.path.join(args.data, "documents.jsonl"))
    questions = read_lines(os.path.join(args.data, "questions.jsonl"))
    ids = {d["doc_id"]: i for i, d in enumerate(documents)}
    os.makedirs(args.out, exist_ok=True)
    write_lines(os.path.join(args.out, "0_trace.jsonl"), (
        {"timestamp": str(i), "input_length": 1000, "output_length": 10, "session_id": str(i),
         "hash_ids": {"sys_prompt": [], "passages_ids": [ids[d] for d in docs], "history": [],
                      "web_search": [], "user_input": []}}
        for i, docs in enumerate(draw(questions, args, random.Random(args.seed)))))
    write_lines(os.path.join(args.out, "2_passages.jsonl"), (
        {"passage_id": i, "token_length": max(1, int(len(d["text"].split()) * TOKENS_PER_WORD))}
        for i, d in enumerate(documents)))
    # The format has lengths of other parts too, which are 0 here.
    for number, part in ((1, "sys_prompt"), (3, "history"), (4, "user_input"), (5, "web_search")):
        write_lines(os.path.join(args.out, f"{number}_{part}.jsonl"),
                    [{f"{part}_id": 900000 + number, "token_length": 1}])


if __name__ == "__main__":
    main()
