"""workloads.py - the requests of the pool's show: questions about documents, and conversations.

A workload is a list of chat requests in their order. All policies are asked the same ones.
"""
from __future__ import annotations

import json
import random
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "rag"))
import scenario  # noqa: E402

SYSTEM = ("Answer from the documents and from what was said before. If they do not say, answer: I "
          "don't know.")
TURNS = (2, 6)        # turns of a conversation, drawn evenly
QUESTION_WORDS = 12


class Workload:
    def __init__(self, name: str, requests: list[dict], description: dict) -> None:
        self.name, self.requests = name, requests  # {messages, documents?}
        self.description = description

    def write(self, file: Path, output_len: int) -> Path:
        """The file that tarn-loadgen's workload `file` reads."""
        scenario.write_lines(file, [{**r, "output_len": output_len} for r in self.requests])
        return file


def rag(args) -> Workload:
    """Lists of documents with the recorded popularity, one question each (rag/scenario.py)."""
    corpus, lists, popularity = scenario.load(args, args.paragraphs)
    made = scenario.Scenario(corpus, lists, popularity, args.top_k, args.requests, args.seed)
    requests = [{"messages": [{"role": "system", "content": SYSTEM},
                              {"role": "user", "content": question}],
                 "documents": [{"title": corpus.documents[d]["title"],
                                "text": corpus.documents[d]["text"]} for d in one]}
                for question, one in zip(made.questions, made.lists)]
    return Workload("rag", requests, made.describe())


def conversations(args) -> Workload:
    """Conversations about paragraphs: each turn brings a paragraph and a question, and the answers
    of earlier turns are a few words of that paragraph. So many of them are open at a time; the next
    turn is that of an open conversation drawn evenly, and a new one replaces one that ended."""
    rng = random.Random(args.seed)
    corpus, _, _ = scenario.load(args, 1)
    texts = [d["text"] for d in corpus.documents]
    open_now: list[tuple[list[dict], int]] = []
    requests: list[dict] = []
    n_begun = 0
    while len(requests) < 3 * args.requests // 2:
        while len(open_now) < args.open_conversations:
            open_now.append(([{"role": "system", "content": SYSTEM}], rng.randint(*TURNS)))
            n_begun += 1
        at = rng.randrange(len(open_now))
        messages, n_left = open_now[at]
        words = rng.choice(texts).split()[:args.turn_words]
        question = " ".join(rng.sample(words, min(QUESTION_WORDS, len(words))))
        asked = {"role": "user", "content": " ".join(words) + "\n" + question + "?"}
        requests.append({"messages": [*messages, asked]})
        answer = {"role": "assistant", "content": " ".join(words[:QUESTION_WORDS]) + "."}
        open_now[at] = ([*messages, asked, answer], n_left - 1)
        if n_left == 1:
            open_now.pop(at)
    return Workload("conversations", requests,
                    {"n_requests": len(requests), "n_conversations": n_begun,
                     "open_at_a_time": args.open_conversations, "turns": TURNS,
                     "turn_words": args.turn_words, "texts": corpus.source, "seed": args.seed})


WORKLOADS = {"rag": rag, "conversations": conversations}


def hash_key(body: dict) -> str:
    """What consistent hashing looks at: the beginning of a prompt behind the system message, which
    all requests share: the first document, else the first message of the user."""
    first = (body.get("documents") or [None])[0]
    if first is None:
        first = next((m for m in body.get("messages", []) if m.get("role") == "user"),
                     body.get("prompt"))
    return json.dumps(first, sort_keys=True)
