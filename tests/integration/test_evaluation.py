#!/usr/bin/env python3
"""Features for evaluation harnesses: echo with logprobs, prefills (max_tokens 0), n and best_of,
min_tokens with stop strings, text_offset.

Prompt logprobs are compared with tests/tools/numpy_llama.py, a forward pass that shares no code
with the engine, on the demo model (which has byte tokens) with KV in f32. Where the machine's
kernels round activations to bf16, so does the reference; rows are then a few steps of bf16 apart.
"""
from __future__ import annotations

import json
import math
import sys
import threading
from typing import Any

from http_helpers import REPO, Server, run_tests, tarn_server, tarn_test

tarn_test.need_numpy()
import numpy as np  # noqa: E402
from numpy_llama import NumpyLlama  # noqa: E402

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
MODEL = REPO / "deploy" / "demo-model"
CONTEXT = 1024  # tokens
N_SEQS = 4
# Of a logprob, with kernels in f32 (measured: 2.4e-4), and with products in bf16.
ERROR_MAX, ERROR_MAX_BF16 = 1e-3, 0.3
STORY = ("The harbour of Orla has 3 cranes, 12 boats and a café — the “Blue Gull”. "
         "Its keeper, Bjørn, says: 字 is a character, and 🙂 is one too. ") * 8

SERVER: Server
SMALL_QUEUE: Server


def echo(prompt: Any, **more: Any) -> dict[str, Any]:
    return {"prompt": prompt, "echo": True, "logprobs": 3, "max_tokens": 0, "temperature": 0,
            **more}


def refused(server: Server, body: dict[str, Any], status: int = 400) -> str:
    got, _, answer = server.request("POST", TEXT, body)
    assert got == status, f"{body!r:.200}: {got} {answer}"
    return str(answer["error"]["message"])


def cached(answer: Any) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def joined(frames: list[Any], index: int) -> dict[str, Any]:
    """The frames of one answer, as the whole answer has it."""
    choices = [c for f in frames for c in f["choices"] if c["index"] == index]
    lists = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    parts = [c["logprobs"] for c in choices if c["logprobs"]]
    return {"text": "".join(c["text"] for c in choices),
            "finish_reason": choices[-1]["finish_reason"],
            "logprobs": {k: [v for part in parts for v in part[k]] for k in lists}}


# --- echo with logprobs ---

def prompt_logprobs_are_those_of_an_independent_forward_pass() -> None:
    ids = SERVER.post("/tokenize", {"prompt": STORY, "add_special_tokens": True})["tokens"][:300]
    assert len(ids) == 300  # more than a segment of 256
    kernels = tarn_test.run_logits_and_kernels(MODEL, ids[:2])[1]
    reference = NumpyLlama.load(MODEL, "f32", kernels)
    logits = reference.logits(ids)
    shifted = logits - logits.max(axis=1, keepdims=True)
    expected = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    lp = SERVER.post(TEXT, echo(ids))["choices"][0]["logprobs"]
    assert len(lp["tokens"]) == len(ids)
    assert lp["token_logprobs"][0] is None and lp["top_logprobs"][0] is None
    ours = np.array(lp["token_logprobs"][1:])
    theirs = expected[np.arange(len(ids) - 1), ids[1:]]
    worst = float(np.abs(ours - theirs).max())
    best = np.array([max(t.values()) for t in lp["top_logprobs"][1:]])
    worst_best = float(np.abs(best - expected[:-1].max(axis=1)).max())
    print(f"      {kernels}: off by {worst:.1e} at most, {worst_best:.1e} for the best tokens")
    bound = ERROR_MAX_BF16 if reference.products_in_bf16 else ERROR_MAX
    assert worst <= bound and worst_best <= bound
    for own, token, tops in zip(lp["token_logprobs"][1:], lp["tokens"][1:], lp["top_logprobs"][1:]):
        assert tops[token] == own and len(tops) in (3, 4), (token, tops)


def generated_tokens_have_the_same_logprobs_in_a_prompt() -> None:
    first = SERVER.post(TEXT, {"prompt": "The harbour", "max_tokens": 60, "temperature": 0,
                               "logprobs": 3, "ignore_eos": True, "return_token_ids": True,
                               "skip_special_tokens": False})["choices"][0]
    lp = SERVER.post(TEXT, echo(first["prompt_token_ids"] + first["token_ids"]))
    lp = lp["choices"][0]["logprobs"]
    assert lp["token_logprobs"][-60:] == first["logprobs"]["token_logprobs"]
    assert lp["top_logprobs"][-60:] == first["logprobs"]["top_logprobs"]
    assert lp["tokens"][-60:] == first["logprobs"]["tokens"]


def neither_the_cache_nor_other_requests_change_a_bit() -> None:
    body = echo(STORY + "Fresh.", max_tokens=4, logprobs=5)
    cold = SERVER.post(TEXT, body)
    warm = SERVER.post(TEXT, body)
    assert cached(cold) == cached(warm) == 0  # each computes its prompt
    others = [threading.Thread(target=SERVER.post, args=(TEXT, {
        "prompt": STORY[i:i + 99], "max_tokens": 30, "ignore_eos": True})) for i in range(6)]
    for thread in others:
        thread.start()
    beside = SERVER.post(TEXT, body)
    for thread in others:
        thread.join()
    assert cold["choices"] == warm["choices"] == beside["choices"]
    after = SERVER.post(TEXT, {**body, "echo": False})
    assert cached(after) > 300  # and their KV is found
    n = len(after["choices"][0]["logprobs"]["tokens"])
    assert after["choices"][0]["logprobs"]["token_logprobs"] == \
        cold["choices"][0]["logprobs"]["token_logprobs"][-n:]
    assert SERVER.metrics()["tarn:kv_blocks_leaked"] == 0


def a_stream_has_what_the_whole_answer_has() -> None:
    # The long one needs several frames.
    for body in (echo("The café", max_tokens=6, n=2), echo("The café", logprobs=0),
                 echo([STORY, "The café"], max_tokens=3, logprobs=20)):
        whole = SERVER.post(TEXT, body)
        frames, _ = SERVER.stream(TEXT, body)
        for c in whole["choices"]:
            assert joined(frames, c["index"]) == {k: c[k] for k in ("text", "finish_reason",
                                                                    "logprobs")}, c["index"]


def every_answer_of_a_prompt_has_its_logprobs() -> None:
    body = echo(["A boat", [9, 10, 11, 12]], n=3, max_tokens=2, temperature=1, seed=5)
    choices = SERVER.post(TEXT, body)["choices"]
    assert [c["index"] for c in choices] == list(range(6))
    for group in (choices[:3], choices[3:]):
        prompts = [{k: v[:-2] for k, v in c["logprobs"].items()} for c in group]
        assert prompts[0] == prompts[1] == prompts[2] and len(prompts[0]["tokens"]) > 1
        assert prompts[0]["token_logprobs"][0] is None


def text_offset_cuts_the_text_into_its_tokens() -> None:
    for body in (echo(STORY), echo(STORY, max_tokens=20), echo("é字🙂", max_tokens=9),
                 echo(SERVER.post("/tokenize", {"prompt": STORY})["tokens"][:57]),
                 {"prompt": "é", "max_tokens": 80, "logprobs": 0, "temperature": 2, "seed": 3,
                  "ignore_eos": True}):
        choice = SERVER.post(TEXT, body)["choices"][0]
        text, lp = choice["text"], choice["logprobs"]
        offsets = [*lp["text_offset"], len(text)]
        assert offsets == sorted(offsets) and offsets[0] == 0, offsets
        parts = [text[a:b] for a, b in zip(offsets, offsets[1:])]
        assert "".join(parts) == text
        pending = b""
        for token, part in zip(lp["tokens"], parts):
            if token.startswith("bytes:"):
                pending += bytes.fromhex(token[6:].replace("\\x", ""))
                assert part in ("", pending.decode(errors="replace")), (token, part)
                pending = b"" if part else pending
            elif part:  # a special token is not in the text
                assert part.endswith(token), (token, part)
    assert any(t.startswith("bytes:") for t in SERVER.post(TEXT, echo("é字🙂"))["choices"][0]
               ["logprobs"]["tokens"])


def too_many_prompt_logprobs_are_refused() -> None:
    assert "echo" in refused(SERVER, echo([9] * 1000, logprobs=20, n=30))
    SERVER.post(TEXT, echo([9] * 1000, logprobs=20, n=2))
    assert "prompt_logprobs" in refused(SERVER, {"prompt": [9] * 1000, "prompt_logprobs": 20,
                                                 "n": 30})


# --- prefills ---

def a_prefill_warms_the_cache() -> None:
    for path, field, kind in ((TEXT, "max_tokens", "text"), (CHAT, "max_completion_tokens", "chat"),
                              (CHAT, "max_tokens", "again")):
        text = f"Warm up {kind} {field}. {STORY}"
        body: dict[str, Any] = {"prompt": text} if path == TEXT else {
            "messages": [{"role": "user", "content": text}]}
        warmed = SERVER.post(path, {**body, field: 0, "cache_ttl": 60})
        choice, usage = warmed["choices"][0], warmed["usage"]
        assert choice["finish_reason"] == "length", choice
        assert (choice["text"] if path == TEXT else choice["message"]["content"]) == ""
        assert usage["completion_tokens"] == 0 and cached(warmed) < 64, usage
        assert usage["total_tokens"] == usage["prompt_tokens"] > 300
        asked = SERVER.post(path, {**body, "max_tokens": 1})
        assert cached(asked) >= usage["prompt_tokens"] - 32, asked["usage"]
        frames, _ = SERVER.stream(path, {**body, field: 0,
                                         "stream_options": {"include_usage": True}})
        ends = [c["finish_reason"] for f in frames for c in f["choices"] if c["finish_reason"]]
        assert ends == ["length"] and frames[-1]["usage"]["completion_tokens"] == 0
        assert not any(c.get("text") or c.get("delta", {}).get("content")
                       for f in frames for c in f["choices"])
    assert SERVER.metrics()["tarn:kv_blocks_leaked"] == 0


def a_prefill_may_fill_the_context() -> None:
    full = [9] * CONTEXT
    assert SERVER.post(TEXT, {"prompt": full, "max_tokens": 0})["usage"]["prompt_tokens"] == CONTEXT
    lp = SERVER.post(TEXT, echo(full, logprobs=1))["choices"][0]["logprobs"]
    assert len(lp["tokens"]) == CONTEXT and all(v < 0 for v in lp["token_logprobs"][1:])
    assert "context" in refused(SERVER, {"prompt": full, "max_tokens": 1})
    assert "prompt" in refused(SERVER, {"prompt": full + [9], "max_tokens": 0})


# --- n and best_of ---

def best_of_returns_those_with_the_best_mean_logprob() -> None:
    body = {"prompt": "The island", "max_tokens": 12, "temperature": 1.3, "seed": 11,
            "logprobs": 0, "return_token_ids": True}
    every = SERVER.post(TEXT, {**body, "n": 8})
    means = [math.fsum(c["logprobs"]["token_logprobs"]) / len(c["token_ids"])
             for c in every["choices"]]
    ranked = sorted(range(8), key=lambda i: -means[i])
    assert len(set(means)) > 3
    for n in (1, 3):
        best = SERVER.post(TEXT, {**body, "n": n, "best_of": 8})
        assert [c["index"] for c in best["choices"]] == list(range(n))
        for got, i in zip(best["choices"], ranked):
            assert {**got, "index": i} == every["choices"][i], (got, i)
        # All that was generated counts.
        assert best["usage"]["completion_tokens"] == every["usage"]["completion_tokens"]
    plain = {k: v for k, v in body.items() if k != "logprobs"}
    best = SERVER.post(TEXT, {**plain, "best_of": 8})["choices"]
    assert len(best) == 1 and best[0]["text"] == every["choices"][ranked[0]]["text"]
    assert best[0]["logprobs"] is None
    two = SERVER.post(TEXT, {**body, "prompt": ["A", "B"], "best_of": 4, "n": 2})["choices"]
    assert [c["index"] for c in two] == [0, 1, 2, 3]


def n_may_be_128_though_few_run_at_once() -> None:
    def computed() -> float:
        return SMALL_QUEUE.metrics()["vllm:request_prefill_kv_computed_tokens_sum"]

    before = computed()
    answer = SMALL_QUEUE.post(TEXT, {"prompt": STORY, "n": 120, "max_tokens": 2, "temperature": 1})
    assert [c["index"] for c in answer["choices"]] == list(range(120))
    assert len({c["text"] for c in answer["choices"]}) > 1
    n_prompt, n_computed = answer["usage"]["prompt_tokens"], computed() - before
    print(f"      {n_computed:.0f} tokens computed of 120 prompts of {n_prompt}")
    # Once, and the open block of each answer; what ran beside the first is at most one step's.
    assert n_computed <= n_prompt + 120 * 32 + 512
    assert SERVER.post(TEXT, {"prompt": "x", "n": 128, "max_tokens": 1})["choices"][127]
    words = refused(SMALL_QUEUE, {"prompt": "x", "n": 125, "max_tokens": 1})
    assert "--max-num-queued-reqs" in words and words.startswith("n: 125"), words
    words = refused(SMALL_QUEUE, {"prompt": "x", "best_of": 125, "max_tokens": 1})
    assert words.startswith("best_of: 125"), words
    assert "n: " in refused(SERVER, {"prompt": ["x", "y"], "n": 65})
    assert "n: " in refused(SERVER, {"prompt": "x", "n": 129})


# --- min_tokens ---

def stop_strings_within_min_tokens_are_text() -> None:
    """As in vLLM: what counts is the token that completes the string."""
    body = {"prompt": "The harbour", "max_tokens": 40, "temperature": 0, "ignore_eos": True,
            "return_token_ids": True, "logprobs": 0}
    free = SERVER.post(TEXT, body)["choices"][0]
    text, offsets = free["text"], free["logprobs"]["text_offset"]
    stop = text[offsets[5]:offsets[6]]  # token 5 completes it, if not an earlier one
    n_first = next(i for i in range(40) if stop in text[:[*offsets, len(text)][i + 1]]) + 1
    for streamed in (False, True):
        def ask(n_min: int) -> tuple[str, str]:
            more = {**body, "stop": [stop], "min_tokens": n_min}
            if not streamed:
                choice = SERVER.post(TEXT, more)["choices"][0]
                return choice["text"], choice["finish_reason"]
            frames, _ = SERVER.stream(TEXT, more)
            whole = joined(frames, 0)
            return whole["text"], whole["finish_reason"]
        assert ask(n_first - 1) == (text[:text.index(stop)], "stop")
        later, reason = ask(n_first)
        assert len(later) > text.index(stop) + len(stop) - 1 and stop in later, later
        assert later == text[:len(later)]
        assert ask(40) == (text, "length")
        assert reason in ("stop", "length")


def main() -> int:
    global SERVER, SMALL_QUEUE
    options = ("--no-profile-cost", "--kv-cache-dtype", "f32", "--max-model-len", str(CONTEXT),
               "--max-num-seqs", str(N_SEQS))
    with tarn_server(MODEL, *options, "--max-num-queued-reqs", "200") as SERVER, \
            tarn_server(MODEL, *options, "--max-num-queued-reqs", "120") as SMALL_QUEUE:
        return run_tests([
            prompt_logprobs_are_those_of_an_independent_forward_pass,
            generated_tokens_have_the_same_logprobs_in_a_prompt,
            neither_the_cache_nor_other_requests_change_a_bit,
            a_stream_has_what_the_whole_answer_has,
            every_answer_of_a_prompt_has_its_logprobs,
            text_offset_cuts_the_text_into_its_tokens,
            too_many_prompt_logprobs_are_refused,
            a_prefill_warms_the_cache,
            a_prefill_may_fill_the_context,
            best_of_returns_those_with_the_best_mean_logprob,
            n_may_be_128_though_few_run_at_once,
            stop_strings_within_min_tokens_are_text,
        ])


if __name__ == "__main__":
    sys.exit(main())
