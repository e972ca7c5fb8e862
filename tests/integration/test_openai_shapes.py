#!/usr/bin/env python3
"""Tarn's answers compared with recorded answers of api.openai.com: they have no other keys except
the documented extensions, and lack no key that OpenAI's answers always have."""
from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from http_helpers import Server, make_model, run_tests, tarn_server, tarn_test

RECORDED = tarn_test.shared_data("openai-recorded")
# Fields that Tarn has and OpenAI does not (README, server/api/answer.h).
EXTENSIONS = {"documents", "stop_reason", "token_ids", "prompt_token_ids", "system_fingerprint",
              "prompt_tokens_details", "completion_tokens_details", "usage",
              "cached_tokens_details", "cache_write_tokens", "held_tokens"}
# Fields of all recorded answers that are about OpenAI's service only.
NOT_OURS = {"service_tier", "obfuscation"}
# Maps whose keys are data.
FREE_MAPS = {"top_logprobs"}

TOOLS_TEMPLATE = (
    "{% if tools %}{{ tools | tojson }} <tool_call>{% endif %}{% for m in messages %}{{ m.role }}: "
    "{{ m.content }}{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}\n"
    "{% endfor %}")

SERVER: Server
TOOLS_SERVER: Server  # with a template that knows tools
Shape = dict[str, tuple[set[str], set[str]]]  # path -> keys seen, keys always there


def walk(path: str, value: Any, shape: Shape) -> None:
    if isinstance(value, list):
        for item in value:
            walk(path + "[]", item, shape)
    elif isinstance(value, dict):
        seen, always = shape.get(path, (set(), set(value)))
        shape[path] = (seen | set(value), always & set(value))
        for key, item in value.items():
            if key not in FREE_MAPS or isinstance(item, list):
                walk(f"{path}.{key}", item, shape)


def sse(text: str) -> list[Any]:
    return [json.loads(line[6:]) for line in text.splitlines()
            if line.startswith("data: ") and line[6:] != "[DONE]"]


def recorded(name: str, want_sse: bool, ok: bool = True) -> Shape:
    shape: Shape = {}
    for line in (RECORDED / f"{name}.jsonl").read_text().splitlines():
        call = json.loads(line)
        if call["sse"] != want_sse or (call["status"] == 200) != ok:
            continue
        for answer in sse(call["response"]) if want_sse else [call["response"]]:
            walk("$", answer, shape)
    assert shape
    return shape


def compare(ours: list[Any], theirs: Shape, logprobs: bool = False) -> None:
    shape: Shape = {}
    for answer in ours:
        walk("$", answer, shape)
    for path, (seen, always) in shape.items():
        if path not in theirs:
            # logprobs were never asked for in the recordings.
            assert logprobs and ".logprobs" in path or any(e in path for e in EXTENSIONS), path
            continue
        extra = seen - theirs[path][0] - EXTENSIONS
        assert not extra, f"{path}: keys OpenAI does not have: {extra}"
        missing = theirs[path][1] - always - NOT_OURS
        assert not missing, f"{path}: keys OpenAI always has: {missing}"


def chat(**more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8, **more}


def chat_answers_fit() -> None:
    compare([SERVER.post("/v1/chat/completions", chat(**m)) for m in
             ({}, {"n": 2}, {"stop": ["e"]}, {"return_token_ids": True})],
            recorded("chat_completions", False))


def chat_chunks_fit() -> None:
    frames: list[Any] = []
    for more in ({}, {"n": 2}, {"stream_options": {"include_usage": True}}):
        frames += SERVER.stream("/v1/chat/completions", chat(**more))[0]
    compare(frames, recorded("chat_completions", True))


def completions_fit() -> None:
    compare([SERVER.post("/v1/completions", {"prompt": "x", "max_tokens": 4, **m})
             for m in ({}, {"n": 2}, {"echo": True})], recorded("completions", False))
    compare(SERVER.stream("/v1/completions", {"prompt": "x", "max_tokens": 4})[0],
            recorded("completions", True))


def errors_fit() -> None:
    answers = [SERVER.request("POST", "/v1/chat/completions", body)[2] for body in
               ({}, {"model": "no"}, chat(temperature="x"), b"{")]
    compare(answers, recorded("chat_completions", False, ok=False))


def logprobs_fit_the_schema() -> None:
    answer = SERVER.post("/v1/chat/completions", chat(logprobs=True, top_logprobs=2))
    compare([answer], recorded("chat_completions", False), logprobs=True)
    token = answer["choices"][0]["logprobs"]["content"][0]
    assert set(token) == {"token", "logprob", "bytes", "top_logprobs"}
    assert set(token["top_logprobs"][0]) == {"token", "logprob", "bytes"}


def calls_of_tools_fit() -> None:
    ask = chat(tools=[{"type": "function", "function": {"name": "f"}}], tool_choice="required",
               parallel_tool_calls=False, max_tokens=200)
    whole = TOOLS_SERVER.post("/v1/chat/completions", ask)
    function = whole["choices"][0]["message"]["tool_calls"][0]["function"]
    assert function["name"] == "f" and json.loads(function["arguments"]) == {}, whole
    compare([whole], recorded("chat_completions", False))
    compare(TOOLS_SERVER.stream("/v1/chat/completions", ask)[0], recorded("chat_completions", True))


def recorded_requests_with_tools_are_read() -> None:
    """Their schemas become grammars where the request asks for that."""
    n = 0
    for line in (RECORDED / "chat_completions.jsonl").read_text().splitlines():
        request = json.loads(line)["request"]
        parts = [p for m in request["messages"] if isinstance(m.get("content"), list)
                 for p in m["content"]]
        if "tools" not in request or any(p["type"] not in ("text", "refusal") for p in parts):
            continue
        for choice in (request.get("tool_choice"), "required"):
            status, _, answer = TOOLS_SERVER.request("POST", "/v1/chat/completions/render", {
                **request, "model": "", "tool_choice": choice})
            assert status == 200, (request, answer)
        n += 1
    assert n > 20, n


def recorded_histories_are_read() -> None:
    """Every conversation of the recordings, tool calls and their results included, becomes a
    prompt, unless it has pictures or files."""
    n_tools = 0
    for line in (RECORDED / "chat_completions.jsonl").read_text().splitlines():
        messages = json.loads(line)["request"]["messages"]
        parts = [p for m in messages if isinstance(m.get("content"), list) for p in m["content"]]
        status, _, answer = SERVER.request("POST", "/tokenize", {"messages": messages})
        if all(p["type"] in ("text", "refusal") for p in parts):
            assert status == 200, (messages, answer)
            n_tools += any(m["role"] == "tool" for m in messages)
        else:
            assert status == 400 and answer["error"]["param"].endswith(".type"), answer
    assert n_tools > 10, n_tools


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        model, template = make_model(folder), Path(folder) / "tools.jinja"
        template.write_text(TOOLS_TEMPLATE)
        with (tarn_server(model) as SERVER,
              tarn_server(model, "--chat-template", str(template)) as TOOLS_SERVER):
            sys.exit(run_tests([chat_answers_fit, chat_chunks_fit, completions_fit, errors_fit,
                                logprobs_fit_the_schema, recorded_histories_are_read,
                                calls_of_tools_fit, recorded_requests_with_tools_are_read]))
