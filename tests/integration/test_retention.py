#!/usr/bin/env python3
"""Fields that ask to keep KV, as clients of OpenAI's and Anthropic's APIs send them: what is held,
what the answers and /metrics say, and the limits of tenants.

Skipped where the openai package cannot be had (venv_helpers.py).
"""
from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from http_helpers import TIMEOUT, Server, make_model, run_tests, tarn_server
from venv_helpers import use_venv

with tempfile.TemporaryDirectory() as folder:
    # The model maker needs NumPy, which the venv need not have: make the model with this Python.
    use_venv("openai", env=lambda: {"TARN_TEST_MODEL": str(make_model(folder))})
import openai  # noqa: E402

BLOCK = 32
ADMIN = {"x-api-key": "boss-boss"}
EPHEMERAL = {"type": "ephemeral"}
BREAKPOINT = {"mode": "explicit"}
N_BOUND = 6  # blocks that the tenant "small" may hold

SERVER: Server
BLOCK_BYTES: int
NUMBER = 0  # of the latest prompt: no two share a block behind the template's first words


def client(key: str = "sk-large-1") -> openai.OpenAI:
    return openai.OpenAI(base_url=SERVER.url + "/v1", api_key=key, max_retries=0, timeout=TIMEOUT)


def fresh(n_words: int = 60) -> str:
    global NUMBER
    NUMBER += 1
    return " ".join(f"{NUMBER}.{i * NUMBER % 97}" for i in range(n_words))


def part(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **more}


def usage(system: Any, question: Any = "Why?", key: str = "sk-large-1", **body: Any) -> Any:
    """prompt_tokens and its details of a chat."""
    answer = client(key).chat.completions.create(
        model="tiny", max_tokens=1, extra_body=body,
        messages=[{"role": "system", "content": system}, {"role": "user", "content": question}])
    details = answer.usage.prompt_tokens_details
    assert details.cache_write_tokens == max(0, details.held_tokens - details.cached_tokens), answer
    return answer.usage.prompt_tokens, details


def ids_of(system: str, question: str) -> list[int]:
    status, _, body = SERVER.request(
        "POST", "/tokenize", {"messages": [{"role": "system", "content": system},
                                           {"role": "user", "content": question}]}, ADMIN)
    assert status == 200, body
    return body["tokens"]


def n_before_question(system: str) -> int:
    """Tokens that two chats with this system message have in common."""
    pairs = zip(ids_of(system, "Why?"), ids_of(system, "How?"))
    return next(i for i, (a, b) in enumerate(pairs) if a != b)


def tree() -> dict[str, Any]:
    status, _, body = SERVER.request("GET", "/cache", None, ADMIN)
    assert status == 200, body
    return body["tree"]


def reset() -> None:
    assert SERVER.request("DELETE", "/cache", None, ADMIN)[0] == 200
    assert tree()["holds"] == 0


def metric(name: str, **labels: str) -> float:
    status, _, text = SERVER.request("GET", "/metrics", None, ADMIN)
    assert status == 200
    found = [line for line in text.splitlines() if line.startswith(name + "{")
             and all(f'{k}="{v}"' in line for k, v in labels.items())]
    assert len(found) == 1, (name, labels, found)
    return float(found[0].rsplit(" ", 1)[1])


def a_plain_request_holds_nothing() -> None:
    for body in ({}, {"prompt_cache_key": "k"}, {"prompt_cache_retention": "in_memory"},
                 {"prompt_cache_options": {"mode": "explicit"}}, {"cache_ttl": 0}):
        _, details = usage(fresh(), **body)
        assert details.held_tokens == 0, (body, details)
    assert tree()["holds"] == 0


def a_field_of_the_request_holds_the_whole_prompt() -> None:
    for body in ({"prompt_cache_options": {}}, {"prompt_cache_options": {"ttl": "30m"}},
                 {"prompt_cache_options": {"mode": "implicit", "ttl": "1h"}},
                 {"prompt_cache_retention": "24h"}, {"cache_control": EPHEMERAL},
                 {"cache_control": {**EPHEMERAL, "ttl": "1h"}}, {"cache_ttl": 60}):
        reset()
        system = fresh()
        n, details = usage(system, **body)
        assert details.held_tokens == n // BLOCK * BLOCK, (body, n, details)
        assert tree()["holds"] == 1
        again = usage(system, **body)[1]
        assert again.held_tokens == details.held_tokens and again.cache_write_tokens == 0, again
        assert tree()["holds"] == 1
    assert metric("tarn:tenant_held_bytes", tenant="large") == (
        tree()["held_blocks"] * BLOCK_BYTES)


def a_breakpoint_holds_the_prompt_up_to_its_end() -> None:
    for mark in ({"prompt_cache_breakpoint": BREAKPOINT}, {"cache_control": EPHEMERAL},
                 {"cache_control": {**EPHEMERAL, "ttl": "1h"}}):
        reset()
        text = fresh()
        n, details = usage([part(text, **mark)], fresh())
        n_most = n_before_question(text)
        assert n_most - 2 * BLOCK < details.held_tokens <= n_most < n - BLOCK, (n, n_most, details)
        assert tree()["held_blocks"] == details.held_tokens // BLOCK
        assert usage(text, "Another?")[1].cached_tokens >= details.held_tokens


def breakpoints_with_times_of_their_own() -> None:
    """As agents send them: the instructions for an hour, the conversation for five minutes."""
    reset()
    system = [part(fresh(), cache_control={**EPHEMERAL, "ttl": "1h"})]
    n, details = usage(system, [part("Read this: " + fresh()), part("Why?",
                                                                   cache_control=EPHEMERAL)])
    assert n - 2 * BLOCK < details.held_tokens <= n, (n, details)
    assert tree()["holds"] == 2


def a_message_may_have_the_field_too() -> None:
    """As litellm sends it."""
    text = fresh()
    answer = client().chat.completions.create(model="tiny", max_tokens=1, messages=[
        {"role": "system", "content": text, "cache_control": EPHEMERAL},  # type: ignore
        {"role": "user", "content": "Why?"}])
    plain = usage(text)
    assert answer.usage.prompt_tokens == plain[0]  # the template did not see it
    details = answer.usage.prompt_tokens_details
    assert 0 < details.held_tokens <= n_before_question(text)
    assert plain[1].cached_tokens >= details.held_tokens


def a_stream_says_the_same() -> None:
    last = None
    for chunk in client().chat.completions.create(
            model="tiny", max_tokens=2, stream=True, stream_options={"include_usage": True},
            messages=[{"role": "user", "content": fresh()}], extra_body={"cache_ttl": 60}):
        last = chunk.usage or last
    details = last.prompt_tokens_details
    assert details.held_tokens == last.prompt_tokens // BLOCK * BLOCK, last
    assert details.cache_write_tokens == details.held_tokens - details.cached_tokens > 0, last


def completions_hold_too() -> None:
    answer = client().completions.create(model="tiny", prompt=[fresh(), fresh()], max_tokens=1,
                                         extra_body={"prompt_cache_retention": "24h"})
    details = answer.usage.prompt_tokens_details
    assert answer.usage.prompt_tokens - 2 * BLOCK < details.held_tokens, answer


def an_unknown_value_names_its_field() -> None:
    for param, body in (
            ("prompt_cache_retention", {"prompt_cache_retention": "7d"}),
            ("prompt_cache_options.ttl", {"prompt_cache_options": {"ttl": "7m"}}),
            ("prompt_cache_options.mode", {"prompt_cache_options": {"mode": "x"}}),
            ("cache_control.ttl", {"cache_control": {**EPHEMERAL, "ttl": 5}}),
            ("cache_control.type", {"cache_control": {}})):
        try:
            usage("x", **body)
        except openai.BadRequestError as error:
            assert error.param == param, error
        else:
            raise AssertionError(body)
    try:
        usage([part("x"), part("y", cache_control={**EPHEMERAL, "ttl": "2h"})])
    except openai.BadRequestError as error:
        assert error.param == "messages[0].content[1].cache_control.ttl", error
    else:
        raise AssertionError("2h")


def a_tenant_holds_no_more_than_kv_bytes() -> None:
    reset()
    kept = fresh()
    assert usage(kept, cache_ttl=600)[1].held_tokens > 0
    n_large = metric("tarn:tenant_held_bytes", tenant="large")
    before = metric("tarn:tenant_holds_refused_total", tenant="small", limit="owner")
    text = fresh()
    n, details = usage(text, key="sk-small-1", cache_ttl=600)
    assert n > N_BOUND * BLOCK and details.held_tokens == 0, details
    assert usage(text, key="sk-small-1")[1].cached_tokens > N_BOUND * BLOCK  # it is cached
    short = [part(fresh(8), cache_control=EPHEMERAL), part(fresh(), cache_control=EPHEMERAL)]
    details = usage(short, key="sk-small-1")[1]
    assert 0 < details.held_tokens <= N_BOUND * BLOCK, details  # up to the first breakpoint
    for _ in range(10):
        usage(fresh(), key="sk-small-1", cache_control=EPHEMERAL)
    assert metric("tarn:tenant_holds_refused_total", tenant="small", limit="owner") == before + 12
    assert 0 < metric("tarn:tenant_held_bytes", tenant="small") <= N_BOUND * BLOCK_BYTES
    assert metric("tarn:tenant_held_bytes", tenant="large") == n_large
    assert metric("tarn:tenant_prompt_tokens_written_total", tenant="small") > 0


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        model = make_model(scratch)
        with tarn_server(model) as probe:
            BLOCK_BYTES = probe.request("GET", "/cache")[2]["block_bytes"]
        keys = Path(scratch) / "keys.json"
        keys.write_text(json.dumps({"keys": [
            {"name": "large", "tenant": "large", "key": "sk-large-1"},
            {"name": "small", "tenant": "small", "key": "sk-small-1",
             "kv_bytes": N_BOUND * BLOCK_BYTES}]}))
        keys.chmod(0o600)
        with tarn_server(model, "--served-model-name", "tiny", "--kv-hold-share", "0.5",
                         "--api-key-file", str(keys), "--admin-api-key", ADMIN["x-api-key"],
                         "--cache-dir", scratch) as SERVER:
            sys.exit(run_tests([a_plain_request_holds_nothing,
                                a_field_of_the_request_holds_the_whole_prompt,
                                a_breakpoint_holds_the_prompt_up_to_its_end,
                                breakpoints_with_times_of_their_own,
                                a_message_may_have_the_field_too, a_stream_says_the_same,
                                completions_hold_too, an_unknown_value_names_its_field,
                                a_tenant_holds_no_more_than_kv_bytes]))
