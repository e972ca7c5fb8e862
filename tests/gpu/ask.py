"""Send many concurrent requests of token ids to a server with random weights; check the answers.

    python3 tests/gpu/ask.py --url http://127.0.0.1:8000 [--requests 100] [--threads 16]
                             [--tokens 32] [--again 10]

Each prompt has 20 to 900 ids, and some share a prefix. Each answer must have all its tokens. At the
end a few requests are sent again alone, and the number of greedy answers that differ is printed. A
GPU promises equal answers only with --batch-invariant; with --strict a difference is an error.
Standard library only.
"""
import argparse
import concurrent.futures
import json
import random
import sys
import time
import urllib.request


def wait_ready(url, seconds):
    """Until the server says it is ready."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(url + "/health/ready", timeout=5) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.2)
    sys.exit(f"{url} was not ready after {seconds} s")


def prompts(n):
    """n lists of ids; every fourth begins like the one before."""
    draw = random.Random(7)
    made = []
    for i in range(n):
        ids = [draw.randrange(100, 30000) for _ in range(draw.randrange(20, 900))]
        if i % 4 == 3:
            ids = made[-1][: len(made[-1]) // 2] + ids[: len(ids) // 2 + 1]
        made.append(ids)
    return made


def ask(url, ids, n_out):
    """The ids of a greedy answer, and the seconds it took."""
    body = {"prompt": ids, "max_tokens": n_out, "temperature": 0, "ignore_eos": True,
            "return_token_ids": True}
    request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    begin = time.monotonic()
    with urllib.request.urlopen(request, timeout=100) as answer:
        reply = json.load(answer)
    got = reply["choices"][0]["token_ids"]
    if len(got) != n_out or reply["usage"]["prompt_tokens"] != len(ids):
        sys.exit(f"an answer of {len(got)} tokens to {len(ids)}: {json.dumps(reply)[:500]}")
    return got, time.monotonic() - begin


def main():
    """Send all requests, then some of them again."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=32, help="of an answer")
    parser.add_argument("--again", type=int, default=10, help="requests that are sent again alone")
    parser.add_argument("--ready-seconds", type=float, default=90)
    parser.add_argument("--strict", action="store_true")
    options = parser.parse_args()
    wait_ready(options.url, options.ready_seconds)
    asked = prompts(options.requests)
    begin = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(options.threads) as pool:
        answers = list(pool.map(lambda ids: ask(options.url, ids, options.tokens), asked))
    seconds = time.monotonic() - begin
    apart = max(1, options.requests // max(1, options.again))
    again = range(0, options.requests if options.again else 0, apart)
    differ = sum(ask(options.url, asked[i], options.tokens)[0] != answers[i][0] for i in again)
    n_tokens = len(answers) * options.tokens
    print(f"{len(answers)} answers in {seconds:.2f} s, {n_tokens / seconds:.0f} "
          f"tokens/s, slowest {max(a[1] for a in answers):.2f} s; "
          f"{differ} of {len(again)} differ when alone")
    if options.strict and differ:
        sys.exit(1)


if __name__ == "__main__":
    main()
