#!/usr/bin/env python3
"""Measure what the order of retrieved documents does to answers, with the demo model.

    retrieval_order.py [--questions N] [--documents K] [--server PROGRAM]

Registers the documents of N (1,000) questions of deploy/demo-model/evaluate.py, all names and
numbers held out, and asks each question with `retrieval` (lexical, top_k K) in each order. Prints the exact
match of answerable and unanswerable questions, the share of questions whose document was found, and
the share of prompt tokens that were cached. Each question is asked right after another one about
the same documents, so that the order "cache" has something to choose.
tests/tools/documents_order.py measures the share that orders find on real questions.
"""
from __future__ import annotations

import argparse
import concurrent.futures
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPO / "tests" / "integration"), str(REPO / "deploy" / "demo-model")]
ORDERS = ("score", "id", "cache")


def register(server: Any, samples: list[dict[str, Any]]) -> None:
    lines = [json.dumps({"id": f"{(i * 7919) % 100003:06}-{k}", "prefill": "lazy", **d})
             for i, s in enumerate(samples) for k, d in enumerate(s["documents"])]
    status, _, answer = server.request("POST", "/v1/documents/bulk", "\n".join(lines).encode(),
                                       {"Content-Type": "application/x-ndjson"})
    assert status == 200 and '"failed":0' in answer.splitlines()[-1], answer[-500:]


def ask(server: Any, sample: dict[str, Any], order: str,
        top_k: int) -> tuple[str, set[str], int, int]:
    """The text, the titles of the documents used, and the tokens: of the prompt, cached."""
    turn = sample["turns"][0]
    body = {"messages": [{"role": "user", "content": turn["question"]}], "temperature": 0,
            "max_tokens": 24, "retrieval": {"order": order, "top_k": top_k, "mode": "lexical"}}
    # The same documents in another order were asked about before.
    server.post("/v1/chat/completions", {**body, "max_tokens": 0, "retrieval": {
        **body["retrieval"], "order": "score", "query": sample["documents"][-1]["text"]}})
    reply = server.post("/v1/chat/completions", body)
    used = {d["title"] for d in reply.get("documents", {"used": []})["used"]}
    usage = reply["usage"]
    return (reply["choices"][0]["message"]["content"],
            used, usage["prompt_tokens"],
            usage["prompt_tokens_details"]["cached_tokens"])


def main() -> int:
    from evaluate import Score, asked_document, interval, make_questions
    from http_helpers import Server

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--questions", type=int, default=1000)
    parser.add_argument("--documents", type=int, default=4, help="retrieved for a question")
    parser.add_argument("--server", default=str(REPO / "build" / "tarn-server"))
    args = parser.parse_args()

    samples = make_questions(args.questions, 3, 0.25, 20261122)
    print("order  answerable                unanswerable  found   cached")
    for order in ORDERS:
        with tempfile.TemporaryDirectory() as folder, Server([
                args.server, "--model", str(REPO / "deploy" / "demo-model"), "--port", "0",
                "--no-profile-cost", "--documents-path", folder]) as server:
            register(server, samples)
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                replies = list(pool.map(lambda s: ask(server, s, order, args.documents), samples))
        asked = [(s["documents"][i]["title"], r[1]) for s, r in zip(samples, replies)
                 if (i := asked_document(s)) is not None and s["turns"][0]["kind"] == "answer"]
        score = Score(samples, [r[0] for r in replies])
        low, high = interval(score.right["answer"], score.n["answer"])
        print(f"{order:6} {score.right['answer']} of {score.n['answer']} "
              f"= {score.percent('answer'):.1f} [{low:.1f}, {high:.1f}]   "
              f"{score.percent('unknown'):5.1f}    "
              f"{100 * sum(title in used for title, used in asked) / len(asked):5.1f} % "
              f"{100 * sum(r[3] for r in replies) / sum(r[2] for r in replies):5.1f} %", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
