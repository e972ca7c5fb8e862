#!/usr/bin/env python3
"""Measure the demo model's exact match on names and numbers that never occur in training.

    evaluate.py --all --server build/tarn-server    the whole table, by PyTorch and the server
    evaluate.py --all --url http://127.0.0.1:8000   the same with a running server
    evaluate.py --documents 3 --count 1000          chosen rows; PyTorch only without a server
    evaluate.py --quick --url URL --standard-library-only
                                                    100 questions to the server, asked twice;
                                                    needs no PyTorch

Each prompt is a single-turn chat about invented things. An answer is right when it equals the
expected one character by character. The exit status is 0 when every bound holds, 1 when one is
missed, 2 when nothing could be measured.

Names and numbers are split by their CRC-32: make_name and make_number of generate_data.py draw
words whose CRC-32 is divisible by 8 for the evaluation, and all others for training and the
tokenizer. check_unseen() verifies that for every question.
"""
import argparse
import concurrent.futures
import json
import math
import os
import random
import re
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

from generate_data import SYSTEM_DEFAULT, Writer, is_held_out

HERE = os.path.dirname(os.path.abspath(__file__))
MAX_ANSWER = 24
KINDS = ("answer", "unknown")

# Bounds of --all, in percent.
LEAST_RIGHT = 95.0        # exact match with 3 documents, on both kinds, on both paths
MOST_SWAPPED = 20.0       # exact match when the asked document has the KV of another document
MOST_APART = 0.5          # difference of documents tokenized separately and as a whole, in points
LEAST_QUICK = 90.0        # exact match of --quick, on both kinds

# Rows with another number of documents than 3, and the swap, have this share of the questions.
OTHER_ROWS = 0.4
# documents, order, temperature, tokenized: the rows of --all.
ROWS = [
    (1, "written", 0.0, "apart"), (1, "written", 0.7, "apart"),
    (3, "written", 0.0, "apart"), (3, "written", 0.0, "whole"), (3, "shuffled", 0.0, "apart"),
    (3, "written", 0.7, "apart"), (3, "shuffled", 0.7, "apart"),
    (6, "written", 0.0, "apart"), (6, "written", 0.0, "whole"), (6, "shuffled", 0.0, "apart"),
    (6, "written", 0.7, "apart"),
]


class Failure(Exception):
    """Nothing could be measured."""


# --- questions ---


def check_unseen(sample):
    """Raise if a name or number of the sample could have occurred in training."""
    turn = sample["turns"][0]
    words = {turn["entity"]} | {e for e, _ in sample["facts"]} | set(sample["facts"].values())
    for word in words:
        if not is_held_out(word) or (word.isdigit() and len(word) < 3):
            raise Failure(f"{word!r} is not held out")
    if turn["kind"] == "answer" and turn["answer"][:-1] not in words:
        raise Failure(f"{turn['answer']!r} is no value of the documents")


def make_questions(count, documents, unknown_share, seed):
    """`count` single questions about `documents` documents, all names and numbers held out."""
    writer, rng, out = Writer(seed, held_out=True), random.Random(seed), []
    while len(out) < count:
        n = len(out)
        unknown = documents == 0 or int((n + 1) * unknown_share) > int(n * unknown_share)
        sample = writer.sample("full", 2, documents=documents, turns=1,
                               unknown=1.0 if unknown else 0.0)
        wanted = "unknown" if unknown else "answer"
        if sample["turns"] and sample["turns"][0]["kind"] == wanted:
            check_unseen(sample)
            rng.shuffle(sample["documents"])
            sample["system"] = None
            out.append(sample)
    return out


def shuffled(samples, seed):
    """The same questions with the documents in another order."""
    rng, out = random.Random(seed), []
    for s in samples:
        documents = list(s["documents"])
        while len(documents) > 1 and documents == s["documents"]:
            rng.shuffle(documents)
        out.append(dict(s, documents=documents))
    return out


def prompt_text(sample):
    """The whole prompt as the chat template renders it."""
    text = "<|bos|><|system|>\n" + SYSTEM_DEFAULT + "\n"
    for d in sample["documents"]:
        text += "<|doc|>" + d["title"] + "\n" + d["text"] + "\n"
    question = sample["turns"][0]["question"]
    return text + "<|end|>\n<|user|>\n" + question + "<|end|>\n<|assistant|>\n"


def asked_document(sample):
    """Index of the document about the thing that is asked for, or None."""
    name = re.compile(r"\b" + re.escape(sample["turns"][0]["entity"]) + r"\b")
    for i, d in enumerate(sample["documents"]):
        if name.search(d["text"]):
            return i
    return None


# --- the server ---


class Server:
    def __init__(self, url, at_once):
        self.url, self.at_once, self.process = url.rstrip("/"), at_once, None

    @classmethod
    def start(cls, binary, model_dir, at_once):
        """Start the server on a free port and wait until it answers."""
        process = subprocess.Popen([binary, "--model", model_dir, "--port", "0"],
                                   stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True)
        said = []
        for line in process.stdout:
            said.append(line)
            found = re.search(r" at (http://\S+?)/v1", line)
            if found:
                server = cls(found.group(1), at_once)
                server.process = process
                # Someone has to read the later output, or the server blocks when the pipe is full.
                threading.Thread(target=process.stdout.read, daemon=True).start()
                return server
        raise Failure("the server did not start:\n" + "".join(said))

    def stop(self):
        if self.process:
            self.process.terminate()
            self.process.wait(timeout=60)

    def post(self, path, body):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=120) as reply:
                return json.load(reply)
        except urllib.error.HTTPError as e:
            raise Failure(f"{path}: {e.code}: {e.read().decode(errors='replace')[:500]}") from e
        except OSError as e:
            raise Failure(f"{self.url}{path}: {e}") from e

    def ask(self, sample, temperature, seed, whole):
        """(text, prompt tokens, tokens of them found in the cache)"""
        body = {"temperature": temperature, "top_p": 1, "top_k": 0, "seed": seed,
                "max_tokens": MAX_ANSWER}
        if whole:
            reply = self.post("/v1/completions", dict(body, prompt=prompt_text(sample)))
            text = reply["choices"][0]["text"]
        else:
            messages = [{"role": "user", "content": sample["turns"][0]["question"]}]
            reply = self.post("/v1/chat/completions",
                              dict(body, messages=messages, documents=sample["documents"]))
            text = reply["choices"][0]["message"]["content"]
        usage = reply["usage"]
        details = usage.get("prompt_tokens_details") or {}
        return text, usage["prompt_tokens"], details.get("cached_tokens", 0)

    def ask_all(self, samples, temperature, seed, whole=False):
        with concurrent.futures.ThreadPoolExecutor(self.at_once) as pool:
            jobs = [pool.submit(self.ask, s, temperature, seed + i, whole)
                    for i, s in enumerate(samples)]
            replies = [job.result() for job in jobs]
        cached = sum(r[2] for r in replies) / max(1, sum(r[1] for r in replies))
        return [r[0] for r in replies], cached


# --- figures ---


def interval(right, n):
    """Wilson's 95 % interval of a share, in percent."""
    if n == 0:
        return 0.0, 100.0
    z, p = 1.959964, right / n
    middle, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return 100 * (middle - half) / (1 + z * z / n), 100 * (middle + half) / (1 + z * z / n)


class Score:
    """Count the right answers of one path, by kind."""

    def __init__(self, samples, texts):
        self.n, self.right = dict.fromkeys(KINDS, 0), dict.fromkeys(KINDS, 0)
        for s, text in zip(samples, texts):
            turn = s["turns"][0]
            self.n[turn["kind"]] += 1
            self.right[turn["kind"]] += text == turn["answer"]

    def percent(self, kind=None):
        n = self.n[kind] if kind else sum(self.n.values())
        right = self.right[kind] if kind else sum(self.right.values())
        return 100 * right / n if n else float("nan")

    def words(self, kind, with_interval=False):
        if not self.n[kind]:
            return "-"
        text = f"{self.percent(kind):.1f}"
        if with_interval:
            text += " [{:.1f}, {:.1f}]".format(*interval(self.right[kind], self.n[kind]))
        return text


class Bounds:
    def __init__(self):
        self.missed = 0

    def check(self, words, holds):
        print(("  holds  " if holds else "  MISSED ") + words)
        self.missed += not holds


def show_wrong(samples, texts, most):
    for s, text in zip(samples, texts):
        turn = s["turns"][0]
        if most > 0 and text != turn["answer"]:
            most -= 1
            print(f"    wrong: {turn['question']} expected {turn['answer']!r}, got {text!r}; "
                  f"{s['documents']}")
    return most


# --- the table ---

HEAD = ("documents", "order", "temp.", "tokenized", "n", "answerable: PyTorch", "server", "n",
        "unanswerable: PyTorch", "server", "same text", "from cache")
WIDTHS = (9, 8, 5, 9, 5, 21, 17, 4, 21, 17, 12, 10)


def print_row(cells):
    print("| " + " | ".join(str(c).ljust(w) for c, w in zip(cells, WIDTHS)) + " |", flush=True)


def measure(row, args, torch_path, server):
    """Measure and print one row: (questions, PyTorch's score, the server's score, number of equal
    texts)."""
    documents, order, temperature, tokenized = row
    count = int(args.count * OTHER_ROWS) if args.all and documents != 3 else args.count
    samples = make_questions(count, documents, args.unknown, args.seed + documents)
    if order == "shuffled":
        samples = shuffled(samples, args.seed)
    whole = tokenized == "whole"
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        job = (pool.submit(server.ask_all, samples, temperature, args.seed, whole)
               if server else None)
        ours = torch_path.answers(samples, temperature, args.seed, whole) if torch_path else None
        theirs, cached = job.result() if job else (None, 0.0)
    a = Score(samples, ours) if ours else None
    b = Score(samples, theirs) if theirs else None
    one = a or b
    same = sum(x == y for x, y in zip(ours, theirs)) if ours and theirs else None
    cells = [documents, order, temperature, tokenized]
    for kind in KINDS:
        cells += [one.n[kind], a.words(kind, True) if a else "-",
                  b.words(kind, not a) if b else "-"]
    cells += [f"{same} of {len(samples)}" if same is not None else "-",
              f"{100 * cached:.0f} %" if server else "-"]
    print_row(cells)
    args.show = show_wrong(samples, ours or theirs, args.show)
    return samples, a, b, same


def check_row(row, samples, a, b, same, bounds):
    documents, order, temperature, tokenized = row
    name = f"{documents} documents, {order}, temperature {temperature}, tokenized {tokenized}"
    if (documents, temperature, tokenized) == (3, 0.0, "apart") and order == "written":
        bounds.check(f"{name}: at least 1,000 questions: {len(samples)}", len(samples) >= 1000)
        unknown = 100 * (a or b).n["unknown"] / len(samples)
        bounds.check(f"{name}: at least 20 % unanswerable: {unknown:.0f} %", unknown >= 20)
        for path, score in (("PyTorch", a), ("server", b)):
            for kind in KINDS if score else ():
                low, high = interval(score.right[kind], score.n[kind])
                bounds.check(f"{name}, {path}, {kind}: {score.right[kind]} of {score.n[kind]} "
                             f"= {score.percent(kind):.2f} % [{low:.1f}, {high:.1f}], "
                             f"at least {LEAST_RIGHT} %",
                             score.percent(kind) >= LEAST_RIGHT)
    if a and b:
        bounds.check(f"{name}: PyTorch and server give the same text {same} of {len(samples)} "
                     "times", same == len(samples))


def run_table(rows, args, torch_path, server, with_bounds):
    bounds, results = Bounds(), []
    print_row(HEAD)
    print_row(["-" * w for w in WIDTHS])
    for row in rows:
        results.append((row,) + measure(row, args, torch_path, server))
    if not with_bounds:
        return 0
    swap = None
    if torch_path:
        samples = make_questions(int(args.count * OTHER_ROWS), 3, args.unknown, args.seed + 3)
        swap = torch_path.swapped(samples)
        low, high = interval(swap[1], swap[0])
        print("\nKV of the asked document swapped with another question's "
              f"(3 documents, greedy, PyTorch): {swap[1]} of "
              f"{swap[0]} right = {100 * swap[1] / swap[0]:.1f} % [{low:.1f}, "
              f"{high:.1f}]; each document's own KV put back the same way: {swap[2]} of "
              f"{swap[0]} = {100 * swap[2] / swap[0]:.1f} %")
    print("\nBounds:")
    for result in results:
        check_row(*result, bounds)
    by_row = {r[0]: r for r in results}
    for documents in (3, 6):
        apart, whole = (by_row[(documents, "written", 0.0, "apart")],
                        by_row[(documents, "written", 0.0, "whole")])
        for path, i in (("PyTorch", 2), ("server", 3)):
            for kind in KINDS if apart[i] else ():
                points = abs(apart[i].percent(kind) - whole[i].percent(kind))
                bounds.check(f"{documents} documents, {path}, {kind}: tokenized apart and whole "
                             f"differ by {points:.2f} points, at most {MOST_APART}",
                             points <= MOST_APART)
    if swap:
        bounds.check(f"swapped KV: {100 * swap[1] / swap[0]:.1f} %, below {MOST_SWAPPED} %",
                     100 * swap[1] / swap[0] < MOST_SWAPPED)
        print(f"prompts whose ids differ when tokenized whole: {torch_path.ids_differ}")
    return 1 if bounds.missed else 0


def run_quick(args, server):
    """Ask 100 questions twice, half of them unanswerable; the second time most of each prompt is
    in the cache."""
    samples = make_questions(100, 3, 0.5, args.seed + 3)
    first, _ = server.ask_all(samples, 0.0, args.seed)
    backwards, cached = server.ask_all(samples[::-1], 0.0, args.seed)
    score, bounds = Score(samples, first), Bounds()
    for kind in KINDS:
        low, high = interval(score.right[kind], score.n[kind])
        bounds.check(f"{kind}: {score.right[kind]} of {score.n[kind]} [{low:.0f}, {high:.0f}], "
                     f"at least {LEAST_QUICK} %",
                     score.percent(kind) >= LEAST_QUICK)
    bounds.check(f"asked again with {100 * cached:.0f} % of the prompts from the cache: "
                 "the same answers",
                 backwards[::-1] == first)
    show_wrong(samples, first, args.show)
    return 1 if bounds.missed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="every row, with bounds")
    parser.add_argument("--quick", action="store_true",
                        help="100 questions with 3 documents to the server")
    parser.add_argument("--standard-library-only", action="store_true",
                        help="no PyTorch: the server alone")
    parser.add_argument("--url", help="ask this server")
    parser.add_argument("--server", help="start this tarn-server on a free port and ask it")
    parser.add_argument("--at-once", type=int, default=4,
                        help="requests that the server gets at the same time")
    parser.add_argument("--model", default=os.path.join(HERE, "model.safetensors"))
    parser.add_argument("--kv-dtype", choices=("bf16", "f32"), default="bf16",
                        help="type of K and V in PyTorch, as in the server")
    parser.add_argument("--documents", type=int, nargs="+", default=[0, 1, 2, 3, 4, 5, 6])
    parser.add_argument("--count", type=int,
                        help="questions per row (1,000 with --all, otherwise 300)")
    parser.add_argument("--unknown", type=float, default=0.25,
                        help="share of questions that the documents do not answer")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=20261121)
    parser.add_argument("--threads", type=int, default=2, help="of PyTorch")
    parser.add_argument("--show", type=int, default=0, help="print so many wrong answers")
    args = parser.parse_args()
    args.count = args.count or (1000 if args.all else 300)
    begin, server, torch_path = time.time(), None, None
    try:
        if args.server:
            server = Server.start(args.server, os.path.dirname(os.path.abspath(args.model)),
                                  args.at_once)
        elif args.url:
            server = Server(args.url, args.at_once)
        if args.quick or args.standard_library_only:
            if not server:
                raise Failure("--quick and --standard-library-only need --url or --server")
        else:
            from evaluate_torch import TorchPath
            temperatures = sorted({row[2] for row in ROWS}) if args.all else [args.temperature]
            torch_path = TorchPath(args.model, args.kv_dtype, args.threads, temperatures)
        if args.quick:
            status = run_quick(args, server)
        else:
            print("Exact match in percent, with Wilson's 95 % interval; names and numbers that "
                  "never occur in training.")
            if torch_path:
                print(torch_path.words)
            rows = ROWS if args.all else [(d, "written", args.temperature, "apart")
                                          for d in args.documents]
            status = run_table(rows, args, torch_path, server, args.all)
    except Failure as e:
        print("evaluate.py:", e, file=sys.stderr)
        status = 2
    finally:
        if server:
            server.stop()
    print(f"{time.time() - begin:.0f} s; "
          + ("nothing measured" if status == 2 else "a bound is missed" if status else "done"))
    return status


if __name__ == "__main__":
    sys.exit(main())
