#!/usr/bin/env python3
"""Ask a running server a question and print the answer as it arrives. Standard library only.

    ask.py [--url http://127.0.0.1:8000] [--document "TITLE: TEXT"]... [--max-tokens N] QUESTION
    ask.py --demo     the demonstration of deploy/quickstart
    ask.py --pool OTHER_URL [--save FILE]
                      the demonstration of deploy/pool: --url and OTHER_URL are instances of a pool

After each answer the program prints the time to the first token (from sending the request to the
first text), the tokens per second after it, and the prompt's tokens with the number found in the
cache. --demo ends with two questions about the same long documents: the first computes them, the
second finds them in the cache. --pool asks one instance, then another one; --save writes a similar
request to FILE, for curl.
"""
from __future__ import annotations

import argparse
import http.client
import json
import secrets
import sys
import time
import urllib.parse
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator

# Invented documents of this repository, and the number that the end of --demo sends: about 500
# tokens, enough to see the time that computing them takes, and not more than the demo model was
# trained for.
LONG_DOCUMENTS = Path(__file__).resolve().parents[1] / "loadgen" / "data" / "rag"
N_LONG_DOCUMENTS = 6
ANNOUNCE_S = 1  # until the other instances know what one has computed

# Invented documents in the style that the demo model was trained on.
DEMO_DOCUMENTS = [
    {"title": "The tower Vomta",
     "text": "Vomta is a tower. The builder of Vomta is Stasprites. Vomta has the height 529."},
    {"title": "Notes on Kumnordim",
     "text": "Kumnordim is a ship. The captain of Kumnordim is Stamos. "
             "Kumnordim's length is 8417."},
]
DEMO_QUESTIONS = ["Who is the captain of Kumnordim?", "What is the height of Vomta?",
                  "Who is the captain of Vomta?"]  # not in the documents


class AskError(Exception):
    pass


class Unreachable(AskError):
    def __init__(self, url: str, error: Exception) -> None:
        super().__init__(f"cannot reach {url}: {error}\n"
                         "  Is a server running there? deploy/quickstart starts one; --url names "
                         "another address.")


@dataclass
class Answer:
    text: str
    ttft_s: float
    decode_s: float
    usage: dict

    def cached(self) -> int:
        return (self.usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0

    def remote(self) -> int:
        """Prompt tokens whose KV came from another instance."""
        details = self.usage.get("prompt_tokens_details") or {}
        return (details.get("cached_tokens_details") or {}).get("remote") or 0

    def summary(self) -> str:
        n_out = self.usage.get("completion_tokens", 0)
        speed = ("" if n_out < 2 or self.decode_s < 1e-4
                 else f", then {(n_out - 1) / self.decode_s:.0f} tokens/s")
        return (f"first token after {self.ttft_s * 1000:.1f} ms{speed}; prompt "
                f"{self.usage.get('prompt_tokens', 0)} tokens, {self.cached()} of them from cache; "
                f"answer {n_out} tokens")


def sse_events(response: http.client.HTTPResponse) -> Iterator[dict]:
    """The JSON of each `data:` line until [DONE]; comment lines are skipped."""
    for raw in response:
        line = raw.decode("utf-8").strip()
        if not line.startswith("data:"):
            continue
        data = line[5:].strip()
        if data == "[DONE]":
            return
        event = json.loads(data)
        if "error" in event:
            raise AskError(event["error"].get("message", "the server reported an error"))
        yield event


def error_words(response: http.client.HTTPResponse) -> str:
    body = response.read().decode("utf-8", "replace")
    try:
        return f"{response.status}: {json.loads(body)['error']['message']}"
    except (ValueError, KeyError, TypeError):
        return f"{response.status}: {body[:500]}"


def connect(url: str) -> tuple[http.client.HTTPConnection, str]:
    """An open connection to the server of `url`, and the part of its path before /v1."""
    try:
        parts = urllib.parse.urlsplit(url)
        is_known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        is_known = False
    if not is_known:
        raise AskError(f"--url {url}: expected http://HOST:PORT or https://HOST:PORT")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    try:
        connection = kind(parts.netloc, timeout=300)
        connection.connect()
    except (OSError, http.client.HTTPException) as error:
        raise Unreachable(url, error) from None
    return connection, parts.path.rstrip("/").removesuffix("/v1")


def ask(url: str, question: str, documents: list[dict], max_tokens: int,
        api_key: str = "", show: bool = True, **more: object) -> Answer:
    """Ask and wait for the whole answer. `more`: further members of the request."""
    body: dict = {"messages": [{"role": "user", "content": question}], "max_tokens": max_tokens,
                  "temperature": 0, "stream": True, "stream_options": {"include_usage": True},
                  **more}
    if documents:
        body["documents"] = documents
    headers = {"Content-Type": "application/json"}
    if api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    connection, path = connect(url)
    start = time.perf_counter()
    connection.request("POST", path + "/v1/chat/completions", json.dumps(body), headers)
    response = connection.getresponse()
    if response.status != 200:
        raise AskError(f"{url} answered {error_words(response)}")
    text, first, last, usage = "", 0.0, 0.0, {}
    for event in sse_events(response):
        usage = event.get("usage") or usage
        for choice in event.get("choices", []):
            piece = choice["delta"].get("content") or ""
            if piece or choice.get("finish_reason"):  # the end-of-sequence token counts too
                last = time.perf_counter()
            if piece:
                first = first or last
                text += piece
                if show:
                    print(piece, end="", flush=True)
    connection.close()
    end = time.perf_counter()
    return Answer(text, (first or end) - start, last - (first or last), usage)


def show_answer(url: str, question: str, documents: list[dict], max_tokens: int,
                api_key: str = "") -> Answer:
    n = len(documents)
    with_documents = f"  (with {n} document{'s' if n > 1 else ''})" if n else ""
    print(f"\n  you   {question}{with_documents}\n  tarn  ", end="", flush=True)
    answer = ask(url, question, documents, max_tokens, api_key)
    print(f"\n        [{answer.summary()}]", flush=True)
    return answer


def read_lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def show_cold_and_cached(url: str, api_key: str) -> None:
    """Ask two questions about the same documents. A random cache_salt ensures that the first one
    finds nothing in the cache, also if the demonstration ran before."""
    n = N_LONG_DOCUMENTS
    documents = read_lines(LONG_DOCUMENTS / "documents.jsonl")[:n]
    questions = read_lines(LONG_DOCUMENTS / "questions.jsonl")[n - 2:n]  # about the last two
    sent = [{"title": d["title"], "text": d["text"]} for d in documents]
    salt = secrets.token_hex(8)
    try:
        answers = [ask(url, q["question"], sent, 48, api_key, False, cache_salt=salt)
                   for q in questions]
    except AskError as error:  # another model may have a short context
        print(f"\n  (no comparison of cold and cached: {error})")
        return
    print(f"\n  Two questions about the same {len(sent)} documents:\n\n"
          f"  {'prompt tokens':>15}{'from cache':>12}{'first token':>14}   question and answer")
    for q, answer in zip(questions, answers):
        print(f"  {answer.usage.get('prompt_tokens', 0):>15}{answer.cached():>12}"
              f"{answer.ttft_s * 1000:>11.1f} ms   {q['question']} {answer.text}")


def long_question(at: int) -> tuple[list[dict], str]:
    """The documents from number `at` on, and a question about the last one."""
    documents = read_lines(LONG_DOCUMENTS / "documents.jsonl")[at:at + N_LONG_DOCUMENTS]
    questions = read_lines(LONG_DOCUMENTS / "questions.jsonl")
    return ([{"title": d["title"], "text": d["text"]} for d in documents],
            questions[at + N_LONG_DOCUMENTS - 1]["question"])


def show_pool(url: str, other: str, api_key: str) -> None:
    """Ask one instance, then another one. A random cache_salt ensures that the first one finds
    nothing, also if the demonstration ran before."""
    documents, question = long_question(0)
    salt = secrets.token_hex(8)
    print(f"\n  The same question about {len(documents)} documents to two instances:\n\n"
          f"  {'prompt tokens':>15}{'from cache':>12}{'remote':>8}{'first token':>14}   instance")
    texts = set()
    for instance in (url, other):
        answer = ask(instance, question, documents, 48, api_key, False, cache_salt=salt)
        texts.add(answer.text)
        print(f"  {answer.usage.get('prompt_tokens', 0):>15}{answer.cached():>12}"
              f"{answer.remote():>8}{answer.ttft_s * 1000:>11.1f} ms   {instance}", flush=True)
        time.sleep(ANNOUNCE_S)
    if len(texts) != 1:
        raise AskError(f"the instances gave different answers: {texts}")
    print(f"\n  Both answered: {texts.pop()}")
    if not answer.remote():
        print("  Nothing came from the other instance: computing was expected to be faster, or see "
              "tarn:pool_* of /metrics.")


def save_question(path: str) -> None:
    documents, question = long_question(N_LONG_DOCUMENTS)
    Path(path).write_text(json.dumps(
        {"messages": [{"role": "user", "content": question}], "documents": documents,
         "max_tokens": 16, "temperature": 0}))


def demo(url: str, api_key: str) -> None:
    answers = [show_answer(url, "Hello", [], 48, api_key)]
    for document in DEMO_DOCUMENTS:
        print(f"\n  document  {document['title']}: {document['text']}", end="")
    print()
    for question in DEMO_QUESTIONS:
        answers.append(show_answer(url, question, DEMO_DOCUMENTS, 48, api_key))
    if any(not answer.usage.get("completion_tokens") for answer in answers):
        raise AskError("an answer came without a token")
    show_cold_and_cached(url, api_key)


def parse_document(text: str) -> dict:
    title, colon, rest = text.partition(":")
    return {"title": title.strip(), "text": rest.strip()} if colon else {"text": text}


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("question", nargs="?")
    p.add_argument("--url", default="http://127.0.0.1:8000")
    p.add_argument("--document", action="append", default=[], type=parse_document,
                   metavar="TITLE: TEXT")
    p.add_argument("--max-tokens", type=int, default=128)
    p.add_argument("--api-key", default="")
    p.add_argument("--demo", action="store_true")
    p.add_argument("--pool", default="", metavar="OTHER_URL")
    p.add_argument("--save", default="", metavar="FILE")
    args = p.parse_args()
    if not args.demo and not args.pool and not args.question:
        p.error("a question, --demo or --pool")
    try:
        if args.demo:
            demo(args.url, args.api_key)
        elif args.pool:
            show_pool(args.url, args.pool, args.api_key)
            if args.save:
                save_question(args.save)
        else:
            show_answer(args.url, args.question, args.document, args.max_tokens, args.api_key)
    except AskError as error:
        raise SystemExit(f"\nask.py: {error}")
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise SystemExit(f"\nask.py: the answer of {args.url} broke off: "
                         f"{error or type(error).__name__}\n  See the log of the server.")


if __name__ == "__main__":
    main()
