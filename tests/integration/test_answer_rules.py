#!/usr/bin/env python3
"""vLLM's fields of completions and chats: allowed_token_ids, bad_words, prompt_logprobs and
truncate_prompt_tokens; of a model with random weights, and of the demo model with a template."""
from __future__ import annotations

import random
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from http_helpers import REPO, Server, make_model, run_tests, tarn_server

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
DEMO = REPO / "deploy" / "demo-model"
QUESTION = "Who is the captain of Kumnordim?"

SERVER: Server  # the demo model
RANDOM: Server  # a model with random weights, which writes what it may


def ids_of(server: Server, text: str) -> list[int]:
    return server.post("/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]


def complete(server: Server, prompt: Any = "The captain", **more: Any) -> list[dict[str, Any]]:
    return server.post(TEXT, {"prompt": prompt, "max_tokens": 20, "return_token_ids": True,
                              "seed": 3, **more})["choices"]


def chat(server: Server, **more: Any) -> dict[str, Any]:
    return server.post(CHAT, {"messages": [{"role": "user", "content": QUESTION}],
                              "max_tokens": 20, "return_token_ids": True, "seed": 3, **more})


def has(ids: list[int], word: list[int]) -> bool:
    return any(ids[i:i + len(word)] == word for i in range(len(ids) - len(word) + 1))


def n_vocab(server: Server) -> int:
    """The refusal of an id that is too large says how many there are."""
    answer = server.request("POST", TEXT, {"prompt": "x", "allowed_token_ids": [1 << 40]})[2]
    return int(answer["error"]["message"].rsplit(" ", 1)[1])


# --- allowed ids ---

def only_allowed_ids_come() -> None:
    allowed = ids_of(SERVER, " the captain of")
    for more in ({"temperature": 0}, {"temperature": 1.5, "n": 5}):
        for choice in complete(SERVER, allowed_token_ids=allowed, **more):
            # None of them ends an answer.
            assert set(choice["token_ids"]) <= set(allowed), choice
            assert choice["finish_reason"] == "length" and len(choice["token_ids"]) == 20, choice
    answer = chat(SERVER, allowed_token_ids=allowed)
    assert set(answer["choices"][0]["token_ids"]) <= set(allowed), answer


def all_ids_change_no_token() -> None:
    for server in (SERVER, RANDOM):
        every = list(range(n_vocab(server)))
        random.Random(1).shuffle(every)
        for more in ({"temperature": 0}, {"temperature": 1, "n": 3, "top_p": 0.9}):
            assert complete(server, allowed_token_ids=every, **more) == complete(server, **more)


def min_tokens_and_allowed_ids_are_both_kept() -> None:
    end = chat(SERVER, temperature=0, max_tokens=60)["choices"][0]["token_ids"][-1]
    word = ids_of(SERVER, " the")[0]
    choice = complete(SERVER, allowed_token_ids=[word, end], min_tokens=4, max_tokens=50,
                      logit_bias={end: 100})[0]
    assert choice["token_ids"] == [word] * 4 + [end], choice
    status, _, answer = SERVER.request("POST", TEXT, {
        "prompt": "x", "allowed_token_ids": [end], "min_tokens": 1})
    assert status == 400 and answer["error"]["param"] == "min_tokens", answer


def a_grammar_wins_where_no_allowed_id_is_left() -> None:
    a, b = ids_of(SERVER, "a")[-1], ids_of(SERVER, "b")[-1]
    more = {"guided_regex": "[abc]{3}yes", "temperature": 1, "n": 8, "max_tokens": 30}
    texts = {c["text"] for c in complete(SERVER, allowed_token_ids=[a, b], **more)}
    assert all(len(t) == 6 and set(t[:3]) <= {"a", "b"} and t[3:] == "yes" for t in texts), texts
    texts = {c["text"] for c in complete(SERVER, bad_words=["yes", "y"], **more)}
    assert all(t[3:] == "yes" for t in texts), texts


# --- bad words ---

def bad_words_never_come() -> None:
    """200 sampled answers; without the field the words come often."""
    plain = complete(RANDOM, n=100, temperature=1.2, max_tokens=16)
    come: dict[tuple[int, int], int] = {}
    for choice in plain:
        for pair in zip(choice["token_ids"], choice["token_ids"][1:]):
            come[pair] = come.get(pair, 0) + 1
    words = []
    for pair in sorted(come, key=lambda p: -come[p]):
        text = RANDOM.post("/detokenize", {"tokens": list(pair)})["prompt"]
        if text.isascii() and text.strip() == text and ids_of(RANDOM, text) == list(pair):
            words.append(text)
    words = words[:20]
    assert words, "no two tokens of an answer are those of their text"
    forbidden = [ids_of(RANDOM, space + word) for word in words for space in ("", " ")]
    assert any(has(c["token_ids"], f) for c in plain for f in forbidden)
    for seed in (7, 1007):
        for choice in complete(RANDOM, n=100, temperature=1.2, max_tokens=16, bad_words=words,
                               seed=seed):
            assert not any(has(choice["token_ids"], f) for f in forbidden), choice


def a_bad_word_changes_the_answer_where_it_would_come() -> None:
    plain = chat(SERVER, temperature=0, max_tokens=40)["choices"][0]["message"]["content"]
    word = plain.rstrip(".").split()[-1]
    text = chat(SERVER, temperature=0, max_tokens=40,
                bad_words=[word])["choices"][0]["message"]["content"]
    assert word in plain and text.split(word)[0] == text and text != plain, (plain, text)
    frames = SERVER.stream(CHAT, {"messages": [{"role": "user", "content": QUESTION}],
                                  "temperature": 0, "max_tokens": 40, "bad_words": [word]})[0]
    assert "".join(f["choices"][0]["delta"].get("content") or "" for f in frames) == text


def an_answer_is_the_same_alone_and_in_a_batch() -> None:
    allowed = [i for i in range(n_vocab(RANDOM)) if i % 3]

    def one(seed: int) -> list[dict[str, Any]]:
        rules: list[dict[str, Any]] = [{"allowed_token_ids": allowed}, {"bad_words": ["a", "the"]},
                                       {}, {"allowed_token_ids": allowed, "bad_words": ["e"],
                                            "min_tokens": 5}]
        return complete(RANDOM, seed=seed, temperature=1, **rules[seed % 4])
    alone = [one(seed) for seed in range(12)]
    with ThreadPoolExecutor(12) as threads:
        assert list(threads.map(one, range(12))) == alone


# --- logprobs of prompts ---

def prompt_logprobs_are_those_of_echo() -> None:
    echo = complete(SERVER, echo=True, logprobs=2, max_tokens=0)[0]["logprobs"]
    choices = complete(SERVER, prompt_logprobs=2, n=2, max_tokens=3)
    ids = choices[0]["prompt_token_ids"]
    rows = choices[0]["prompt_logprobs"]
    assert choices[1]["prompt_logprobs"] == rows and len(rows) == len(ids) and rows[0] is None
    for i in range(1, len(ids)):
        own = rows[i][str(ids[i])]
        assert own["logprob"] == echo["token_logprobs"][i], (i, own)
        assert own["decoded_token"] == echo["tokens"][i], (i, own)
        ranks = sorted((r["rank"] or 99, -r["logprob"]) for r in rows[i].values())
        assert [r for r, _ in ranks][:2] == [1, 2] and len(ranks) <= 3, rows[i]
        assert ranks == sorted(ranks, key=lambda r: r[1]), rows[i]
        assert (own["rank"] is None) == (len(ranks) == 3), rows[i]


def chats_have_one_list_beside_the_choices() -> None:
    answer = chat(SERVER, prompt_logprobs=0, n=2, logprobs=True, top_logprobs=3, max_tokens=2)
    ids = answer["prompt_token_ids"]
    assert [list(row) for row in answer["prompt_logprobs"][1:]] == [[str(i)] for i in ids[1:]]
    assert len(answer["choices"][1]["logprobs"]["content"][0]["top_logprobs"]) == 3
    # The greater of the two counts is kept, and each list has its own.
    more = chat(SERVER, prompt_logprobs=4, logprobs=True, top_logprobs=1, max_tokens=1)
    assert len(more["choices"][0]["logprobs"]["content"][0]["top_logprobs"]) == 1
    assert all(len(row) in (4, 5) for row in more["prompt_logprobs"][1:])
    assert "prompt_logprobs" not in chat(SERVER)


def too_many_logprobs_and_streams_are_refused() -> None:
    for body, words in (({"stream": True, "prompt_logprobs": 1}, "stream"),
                        ({"prompt_logprobs": 21}, ""), ({"prompt_logprobs": -1}, "vocabulary")):
        status, _, answer = SERVER.request("POST", TEXT, {"prompt": "x", **body})
        assert status == 400 and answer["error"]["param"] == "prompt_logprobs", answer
        assert words in answer["error"]["message"], answer
    body = {"prompt": [[5] * 200] * 8, "n": 16, "prompt_logprobs": 20, "max_tokens": 1}
    status, _, answer = SERVER.request("POST", TEXT, body)
    assert status == 400 and answer["error"]["param"] == "prompt_logprobs", answer


# --- truncation ---

def the_last_tokens_of_a_prompt_are_left() -> None:
    text = "one two three four five six seven"
    ids = SERVER.post("/tokenize", {"prompt": text})["tokens"]
    whole, cut = complete(SERVER, text)[0], complete(SERVER, text, truncate_prompt_tokens=5)[0]
    assert whole["prompt_token_ids"] == ids and cut["prompt_token_ids"] == ids[-5:]
    assert cut["token_ids"] == complete(SERVER, ids[-5:])[0]["token_ids"]
    assert complete(SERVER, text, truncate_prompt_tokens=1000)[0] == whole
    echo = complete(SERVER, text, truncate_prompt_tokens=5, echo=True, logprobs=0, max_tokens=1)[0]
    tail = SERVER.post("/detokenize", {"tokens": ids[-5:]})["prompt"]
    assert text.endswith(tail) and echo["text"].startswith(tail), echo
    answer = chat(SERVER, truncate_prompt_tokens=6, max_tokens=1)
    assert len(answer["prompt_token_ids"]) == 6 == answer["usage"]["prompt_tokens"]
    shown = SERVER.post(f"{TEXT}/render", {"prompt": text, "truncate_prompt_tokens": 5})
    assert shown[0]["token_ids"] == ids[-5:], shown


def a_prompt_beyond_the_context_is_cut_to_it() -> None:
    context = RANDOM.request("GET", "/v1/models")[2]["data"][0]["max_model_len"]
    text = "the captain of the ship " * (context // 3)
    status, _, answer = RANDOM.request("POST", TEXT, {"prompt": text, "max_tokens": 3})
    assert status == 400, answer
    choice = complete(RANDOM, text, truncate_prompt_tokens=-1, max_tokens=3, ignore_eos=True)[0]
    assert len(choice["prompt_token_ids"]) == context - 3 and len(choice["token_ids"]) == 3
    # There is a bound all the same: four contexts, or more for a small model.
    n_most = max(4 * context, 65536) + 1
    status, _, answer = RANDOM.request("POST", TEXT, {
        "prompt": [1] * n_most, "max_tokens": 3, "truncate_prompt_tokens": -1})
    assert status == 400 and f"{n_most} tokens" in answer["error"]["message"], answer


def a_prompt_with_documents_is_not_cut() -> None:
    for more in ({"documents": [{"text": "a"}]}, {"retrieval": True}):
        status, _, answer = SERVER.request("POST", CHAT, {
            "messages": [{"role": "user", "content": "x"}], "truncate_prompt_tokens": 5, **more})
        assert status == 400 and answer["error"]["param"] == "truncate_prompt_tokens", answer


TESTS = [only_allowed_ids_come, all_ids_change_no_token, min_tokens_and_allowed_ids_are_both_kept,
         a_grammar_wins_where_no_allowed_id_is_left, bad_words_never_come,
         a_bad_word_changes_the_answer_where_it_would_come,
         an_answer_is_the_same_alone_and_in_a_batch, prompt_logprobs_are_those_of_echo,
         chats_have_one_list_beside_the_choices, too_many_logprobs_and_streams_are_refused,
         the_last_tokens_of_a_prompt_are_left, a_prompt_beyond_the_context_is_cut_to_it,
         a_prompt_with_documents_is_not_cut]

if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="tarn-rules-") as folder:
        model = make_model(folder)
        with (tarn_server(Path(DEMO)) as SERVER,
              tarn_server(model, "--max-model-len", "256") as RANDOM):
            sys.exit(run_tests(TESTS))
