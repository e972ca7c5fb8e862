#!/usr/bin/env python3
"""Tenants do not see each other's prompts, by counts or by time; preambles are shared exactly.

    test_isolation.py [--no-times]

--no-times leaves out the measured part, for builds that are slow.
TARN_TEST_MODEL is not used: the measurement needs a model of a known size, so the test makes one.
"""
from __future__ import annotations

import http.client
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from http_helpers import TIMEOUT, Server, make_model, run_tests, tarn_server
import tarn_test

TEXT = "/v1/completions"
CHAT = "/v1/chat/completions"
KEYS = {"a": "sk-alice-0001", "b": "sk-bob-000001", "b2": "sk-bob-000002"}

SEED = 20261121
VOCAB = 512
BLOCK = 32
N_PROBE_TOKENS = 512  # 16 blocks: long enough that a hit shows, see the control
N_PROBES = 400        # of each kind
N_CONTROL = 150
AUC_LOW, AUC_HIGH = 0.42, 0.58  # four standard deviations around a half: 0.0204 each

SYSTEM = ("You are the assistant of a travel agency. Answer in at most three sentences, name\n"
          "prices with their currency, and say so when you do not know.\nNever promise a seat.")

FOLDER: Path
MODEL: Path


class Tenant:
    """A client with one key on one connection."""

    def __init__(self, server: Server, name: str) -> None:
        self.key = KEYS[name]
        self.connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=TIMEOUT)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        self.connection.request("POST", path, json.dumps(body), {"x-api-key": self.key})
        response = self.connection.getresponse()
        answer = json.loads(response.read())
        assert response.status == 200, answer
        return answer

    def session(self, method: str, path: str) -> tuple[int, Any]:
        self.connection.request(method, f"/v1/sessions/{path}", headers={"x-api-key": self.key})
        response = self.connection.getresponse()
        return response.status, json.loads(response.read())

    def cached(self, path: str, body: dict[str, Any]) -> int:
        usage = self.post(path, {"max_tokens": 2, "temperature": 0, **body})["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    def first_token(self, ids: list[int]) -> tuple[float, int]:
        """Seconds until the first token's bytes are here, and the cached tokens."""
        body = json.dumps({"prompt": ids, "max_tokens": 1, "temperature": 0, "stream": True,
                           "stream_options": {"include_usage": True}}).encode()
        start = time.perf_counter()
        self.connection.request("POST", TEXT, body, {"x-api-key": self.key})
        response = self.connection.getresponse()
        line = response.readline()
        while not line.startswith(b"data: "):
            assert line, "the stream ended before its first token"
            line = response.readline()
        seconds = time.perf_counter() - start
        rest = response.read().decode()
        assert response.status == 200 and rest.endswith("data: [DONE]\n\n"), rest
        frames = [json.loads(e[6:]) for e in rest.splitlines() if e.startswith("data: {")]
        return seconds, int(frames[-1]["usage"]["prompt_tokens_details"]["cached_tokens"])


def serve(*options: str, model: Path | None = None) -> Server:
    keys = FOLDER / "keys.json"
    tenants = {"a": "alice", "b": "bob", "b2": "bob"}
    keys.write_text(json.dumps({"keys": [{"name": n, "key": k, "tenant": tenants[n]}
                                         for n, k in KEYS.items()]}))
    keys.chmod(0o600)
    return tarn_server(model or MODEL, "--cache-dir", str(FOLDER / "cache"), "--threads", "1",
                       "--api-key-file", str(keys), *options)


def file_of(text: str | bytes, name: str = "preamble.txt") -> str:
    path = FOLDER / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


def chat(system: str | None, question: str, **more: Any) -> dict[str, Any]:
    first = [{"role": "system", "content": system}] if system is not None else []
    return {"messages": first + [{"role": "user", "content": question}], **more}


def n_tokens(tenant: Tenant, text: str) -> int:
    body = {"prompt": text, "add_special_tokens": False}
    return int(tenant.post("/tokenize", body)["count"])


def whole(n: int) -> int:
    return n // BLOCK * BLOCK


# --- counts ---

def another_tenants_prompt_is_no_hit() -> None:
    ids = {"prompt": [7 + i % 90 for i in range(300)]}
    question = chat(SYSTEM, "Which trains go to Basel in the morning?")
    with serve() as s:
        a, b, b2 = Tenant(s, "a"), Tenant(s, "b"), Tenant(s, "b2")
        for path, body in ((TEXT, ids), (CHAT, question)):
            assert a.cached(path, body) == 0
            own = a.cached(path, body)
            assert own > 0, "a tenant finds its own prompt again"
            assert b.cached(path, body) == 0
            assert b.cached(path, body) == own
            assert b2.cached(path, body) == own, "keys of one tenant share"
        assert own >= 64


def another_salt_is_no_hit() -> None:
    ids = {"prompt": [11 + i % 70 for i in range(300)]}
    with serve() as s:
        a, b = Tenant(s, "a"), Tenant(s, "b")
        own = whole(300 - 1)
        for salt in ({"cache_salt": "one"}, {"cache_salt": "two"}, {}):
            assert a.cached(TEXT, {**ids, **salt}) == 0, salt
            assert a.cached(TEXT, {**ids, **salt}) == own, salt
        # The same salt of another tenant is another scope.
        assert b.cached(TEXT, {**ids, "cache_salt": "one"}) == 0
        assert a.cached(TEXT, {**ids, "cache_salt": "one"}) == own


# --- sessions ---

def another_tenants_session_is_neither_seen_nor_closed() -> None:
    prompt = [7 + i % 90 for i in range(300)]
    with serve() as s:
        a, b, b2 = Tenant(s, "a"), Tenant(s, "b"), Tenant(s, "b2")
        for tenant in (a, b):
            tenant.post(TEXT, {"prompt": prompt, "max_tokens": 8, "session_id": "agent 7"})
        status, seen = b.session("GET", "agent%207")
        assert status == 200 and seen["id"] == "agent 7" and seen["requests"] == 1, seen
        assert seen["generated_tokens"] == 8 and seen["running"] == 0 < seen["served_s"], seen
        assert seen["kv"]["tokens"] >= whole(300) and seen["kv"]["own_blocks"] > 0, seen
        assert a.session("POST", "other/close")[1]["closed"] is False
        status, closed = a.session("POST", "agent%207/close")
        assert status == 200 and closed["closed"] and closed["requests"] == 1, closed
        assert closed["released_blocks"] == seen["kv"]["own_blocks"], (closed, seen)
        assert a.session("GET", "agent%207")[0] == 404
        again = b.session("GET", "agent%207")[1]
        assert {**again, "age_s": 0, "idle_s": 0} == {**seen, "age_s": 0, "idle_s": 0}
        assert b2.session("POST", "agent%207/close")[1]["closed"] is True
        closed = b.session("POST", "agent%207/close")[1]
        assert closed["closed"] is False and closed["released_blocks"] == 0, closed
        # Closing forgets nothing: it only evicts first.
        assert a.cached(TEXT, {"prompt": prompt}) > 0


# --- preambles ---

def a_preamble_is_shared_and_nothing_behind_it() -> None:
    question = "Which trains go to Basel in the morning, and which of them have a dining car?"
    with serve("--preamble", file_of(SYSTEM + "\n")) as s:
        a, b = Tenant(s, "a"), Tenant(s, "b")
        n = n_tokens(a, f"<|bos|><|system|>\n{SYSTEM}<|end|>")
        assert n % BLOCK, "the preamble's last block should be a partly filled one"
        assert a.cached(CHAT, chat(SYSTEM, question)) == 0
        own = a.cached(CHAT, chat(SYSTEM, question))
        assert own > n, (own, n)
        assert b.cached(CHAT, chat(SYSTEM, question)) == n  # not one block more
        assert b.cached(CHAT, chat(SYSTEM, question)) == own
        for salt in ("one", "two"):  # the preamble belongs to no user; the text behind it does
            assert a.cached(CHAT, chat(SYSTEM, question, cache_salt=salt)) == n
            assert a.cached(CHAT, chat(SYSTEM, question, cache_salt=salt)) == own
        # Ids are as without a preamble.
        ids = a.post("/tokenize", chat(SYSTEM, question))["tokens"]
    with serve() as s:
        assert Tenant(s, "a").post("/tokenize", chat(SYSTEM, question))["tokens"] == ids


def text_that_is_not_the_preamble_is_not_shared() -> None:
    question = "Which trains go to Basel?"
    others = [chat(SYSTEM + "!", question), chat(SYSTEM[:-1], question), chat(None, SYSTEM),
              chat(" " + SYSTEM, question), chat(SYSTEM + " I am Ann.", question),
              {"prompt": f"<|bos|><|system|>\n{SYSTEM}<|end|>\n<|user|>\nHello<|end|>\n",
               "add_special_tokens": False}]
    with serve("--preamble", file_of(SYSTEM)) as s:
        a, b = Tenant(s, "a"), Tenant(s, "b")
        assert a.cached(CHAT, chat(SYSTEM, question)) == 0
        assert b.cached(CHAT, chat(SYSTEM, question)) > 0
        for i, body in enumerate(others):
            path = TEXT if "prompt" in body else CHAT
            for tenant in (a, b):  # a salt each, for they share blocks with one another
                assert tenant.cached(path, {**body, "cache_salt": str(i)}) == 0, body


def documents_behind_a_preamble_are_the_tenants_own() -> None:
    documents = [{"title": f"Line {i}", "text": "Trains leave at every full hour. " * 6}
                 for i in range(3)]
    question = chat(SYSTEM, "When do trains leave?", documents=documents)
    with serve("--preamble", file_of(SYSTEM)) as s:
        a, b = Tenant(s, "a"), Tenant(s, "b")
        n = n_tokens(a, f"<|bos|><|system|>\n{SYSTEM}\n\nDocuments:\n")
        assert a.cached(CHAT, question) == 0
        assert a.cached(CHAT, question) > n + 3 * BLOCK
        assert b.cached(CHAT, question) == n
        # With other documents, and with none, the blocks before the difference are the same.
        assert b.cached(CHAT, chat(SYSTEM, "When?", documents=documents[1:])) == n
        assert Tenant(s, "a").cached(CHAT, chat(SYSTEM, "When?")) >= whole(n_tokens(a, SYSTEM))


def model_with(name: str, template: str | None = None, rstrip: bool = False) -> Path:
    """A copy of the model with another template, or whose <|end|> takes the newline behind it."""
    folder = FOLDER / name
    folder.mkdir(exist_ok=True)
    for path in MODEL.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    if template is not None:
        config = json.loads((folder / "tokenizer_config.json").read_text())
        config["chat_template"] = template
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    if rstrip:
        tokenizer = json.loads((folder / "tokenizer.json").read_text())
        for token in tokenizer["added_tokens"]:
            token["rstrip"] = token["content"] == "<|end|>"
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


def a_preamble_leaves_the_ids_as_they_are() -> None:
    model = model_with("rstrip", rstrip=True)
    question = chat(SYSTEM, "Which trains go to Basel?")
    with serve(model=model) as s:
        want = Tenant(s, "a").post("/tokenize", question)["tokens"]
    with serve("--preamble", file_of(SYSTEM), model=model) as s:
        a, b = Tenant(s, "a"), Tenant(s, "b")
        assert a.post("/tokenize", question)["tokens"] == want
        n = n_tokens(a, f"<|bos|><|system|>\n{SYSTEM}<|end|>\n")
        assert a.cached(CHAT, question) == 0
        assert b.cached(CHAT, question) == n


def a_template_that_strips_and_writes_the_date_can_share() -> None:
    model = model_with("dated", "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>\n"
                       "{% if loop.first %}Today is {{ strftime_now('%d %b %Y') }}.\n\n{% endif %}"
                       "{{ m.content | trim }}<|end|>{% endfor %}<|assistant|>\n")
    with serve("--preamble", file_of(SYSTEM + " \n\n"), model=model) as s:
        a, b = Tenant(s, "a"), Tenant(s, "b")
        assert a.cached(CHAT, chat("\n" + SYSTEM + "\n", "Trains?")) == 0
        n = b.cached(CHAT, chat(SYSTEM, "Trains?"))
        assert n > n_tokens(a, SYSTEM), n


def a_preamble_that_cannot_be_shared_ends_the_start() -> None:
    good = file_of(SYSTEM)
    plain = "{% for m in messages %}{{ m.content }} {% endfor %}"
    no_system = ("{% for m in messages %}{% if m.role == 'system' %}"
                 "{{ raise_exception('no system role') }}{% endif %}{{ m.content }}\n{% endfor %}")
    skips = "{% for m in messages if m.role == 'user' %}{{ m.content }}\n{% endfor %}"
    seconds = "{% for m in messages %}{{ strftime_now('%H:%M') }} {{ m.content }}\n{% endfor %}"
    cases = [
        (["--preamble", str(FOLDER / "nothing.txt")], MODEL, "cannot open"),
        (["--preamble", f"{good},{FOLDER}"], MODEL, "is not a regular file"),
        (["--preamble", file_of("\n", "empty.txt")], MODEL, "is empty"),
        (["--preamble", file_of(b"caf\xe9", "latin.txt")], MODEL, "no UTF-8 text"),
        (["--preamble", file_of("word " * 5000, "long.txt")], MODEL, "more tokens than"),
        (["--preamble", good], model_with("plain", plain), "neither a newline nor a special token"),
        (["--preamble", good], model_with("none", no_system), "no system role"),
        (["--preamble", good], model_with("skips", skips), "does not write the system message"),
        (["--preamble", good], model_with("seconds", seconds), "time of day"),
    ]
    for options, model, words in cases:
        run = subprocess.run([str(tarn_test.program("tarn-server")), "--model", str(model),
                              "--port", "0", "--cache-dir", str(FOLDER / "cache"), *options],
                             capture_output=True, text=True,
                             timeout=tarn_test.patience(60), check=False)
        last = run.stderr.strip().splitlines()[-1]
        assert run.returncode == 1 and "--preamble: " in last and words in last, (words, last)


# --- time ---

def auc(first: list[float], second: list[float]) -> float:
    """Mann-Whitney: how often one of `first` is below one of `second`; ties count half."""
    ranked = sorted([(x, 0) for x in first] + [(x, 1) for x in second])
    n_below = total = 0.0
    i = 0
    while i < len(ranked):
        j = i
        while j < len(ranked) and ranked[j][0] == ranked[i][0]:
            j += 1
        n_second = sum(kind for _, kind in ranked[i:j])
        n_first = j - i - n_second
        total += n_second * (n_below + n_first / 2)
        n_below += n_first
        i = j
    return total / (len(first) * len(second))


def probe(server: Server, victim: str, spy: str, n: int, seed: int) -> tuple[float, int]:
    """The AUC of the spy's TTFT for prompts that the victim has just sent against new prompts, n of
    each in random order, and the number of probes with a hit.

    Before each probe the victim asks something of the same length, so that caches, clocks and the
    state of the server are alike and only the prompt differs."""
    rng = random.Random(seed)
    kinds = [True, False] * n
    rng.shuffle(kinds)
    times: dict[bool, list[float]] = {True: [], False: []}
    n_hits = 0
    a, b = Tenant(server, victim), Tenant(server, spy)

    def draw() -> list[int]:
        return [3 + byte % 250 for byte in rng.randbytes(N_PROBE_TOKENS)]

    for was_asked in kinds:
        prompt, other = draw(), draw()
        a.first_token(prompt if was_asked else other)
        seconds, cached = b.first_token(prompt)
        times[was_asked].append(seconds)
        n_hits += cached > 0
    return auc(times[True], times[False]), n_hits


def the_time_to_the_first_token_tells_nothing_about_others() -> None:
    """Noise of a busy machine moves the AUC towards a half, so it can hide a leak and cannot make
    one. The control shows the AUC of a shared cache: 0.9 and more on a quiet machine."""
    with serve("--max-model-len", "1024") as s:
        probe(s, "a", "b", 20, SEED)  # warm up
        value, n_hits = probe(s, "a", "b", N_PROBES, SEED + 1)
        # Two keys of one tenant: a spy that could see hits would see them like this.
        control, n_control_hits = probe(s, "b", "b2", N_CONTROL, SEED + 2)
    print(f"      two tenants, 2 x {N_PROBES} probes: AUC {value:.3f}\n"
          f"      one tenant, 2 x {N_CONTROL} probes: AUC {control:.3f}", flush=True)
    assert n_hits == 0, n_hits
    assert n_control_hits == N_CONTROL, n_control_hits
    assert AUC_LOW <= value <= AUC_HIGH, value


def the_auc_is_right() -> None:
    assert auc([1, 2], [3, 4]) == 1 and auc([3, 4], [1, 2]) == 0
    assert auc([1, 1], [1, 1]) == 0.5 and auc([1, 3], [2]) == 0.5
    assert auc([1, 2, 2], [2, 5]) == 5 / 6


def main() -> int:
    global FOLDER, MODEL
    with tempfile.TemporaryDirectory(prefix="tarn-isolation-") as folder:
        FOLDER = Path(folder)
        MODEL = make_model(folder, "--max-pos", "2048", "--vocab", str(VOCAB))
        tests = [
            another_tenants_prompt_is_no_hit, another_salt_is_no_hit,
            another_tenants_session_is_neither_seen_nor_closed,
            a_preamble_is_shared_and_nothing_behind_it, text_that_is_not_the_preamble_is_not_shared,
            documents_behind_a_preamble_are_the_tenants_own, a_preamble_leaves_the_ids_as_they_are,
            a_template_that_strips_and_writes_the_date_can_share,
            a_preamble_that_cannot_be_shared_ends_the_start, the_auc_is_right]
        if "--no-times" not in sys.argv[1:]:
            tests.append(the_time_to_the_first_token_tells_nothing_about_others)
        return run_tests(tests)


if __name__ == "__main__":
    sys.exit(main())
