#!/usr/bin/env python3
"""Requests of clients of OpenAI's API: histories with tool calls, fields without effect, misspelt
and hostile fields; and the server's options for names and keys."""
from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from http_helpers import REPO, Server, run_tests, tarn_server, tarn_test

CHAT = "/v1/chat/completions"
DEMO = REPO / "deploy" / "demo-model"
HEADER = "x-tarn-ignored-fields"
# A template with role "developer" and tool calls, in a notation of its own.
TEMPLATE = """{% for m in messages %}{{ m.role }}{% if m.role == 'developer' %}!{% endif %}
:{{ m.content }}{% for c in m.tool_calls %}
<{{ c.id }} {{ c.function.name }} {{ c.function.arguments | tojson }}>{% endfor %}
;{% endfor %}{% if reasoning_effort is defined %}effort {{ reasoning_effort }}{% endif %}"""
HISTORY = [
    {"role": "developer", "content": "Be kind."},
    {"role": "user", "content": "Hot?"},
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "call_a1", "type": "function",
         "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}]},
    {"role": "tool", "tool_call_id": "call_a1", "content": "18 C"}]

SERVER: Server


def user(text: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 1, **more}


def refused(body: Any, field: str | None, words: str, path: str = CHAT) -> None:
    status, _, answer = SERVER.request("POST", path, body)
    error = answer["error"]
    assert status == 400 and error["type"] == "invalid_request_error", (status, error)
    assert error["param"] == field and words in error["message"], error


def rendered(server: Server, body: dict[str, Any]) -> str:
    ids = server.post("/tokenize", body)["tokens"]
    return server.post("/detokenize", {"tokens": ids})["prompt"]


# --- histories ---

def a_tool_clients_history_is_rendered() -> None:
    """The demo model's template knows three roles and adds the content to a string."""
    text = rendered(SERVER, {"messages": HISTORY})
    assert text == ("<|bos|><|system|>\nBe kind.\n<|end|>\n<|user|>\nHot?<|end|>\n"
                    '<|assistant|>\nTool call call_a1: weather({"city": "Paris"})<|end|>\n'
                    "<|user|>\nTool result call_a1:\n18 C<|end|>\n<|assistant|>\n"), text
    SERVER.post(CHAT, {"messages": HISTORY, "max_tokens": 1})


def a_template_that_knows_more_gets_more() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "template.jinja"
        path.write_text(TEMPLATE)
        with tarn_server(DEMO, "--no-profile-cost", "--chat-template", str(path)) as server:
            text = rendered(server, {"messages": HISTORY, "reasoning_effort": "low"})
            assert text == ('developer!:Be kind.;user:Hot?;assistant:<call_a1 weather '
                            '{"city": "Paris"}>;tool:18 C;effort low'), text


def a_history_that_cannot_be_read_is_named() -> None:
    def with_call(call: Any) -> dict[str, Any]:
        return {"messages": [{"role": "assistant", "content": None, "tool_calls": [call]}]}
    refused(with_call({}), "messages[0].tool_calls[0].id", "expected a string")
    refused(with_call({"id": "a"}), "messages[0].tool_calls[0].function", "expected an object")
    refused({"messages": [{"role": "user", "content": None}]}, "messages[0].content", "expected")


# --- hostile strings ---

def a_nul_is_400_and_names_the_field() -> None:
    def message(**more: Any) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": "x", **more}]}
    words = "must not hold the character U+0000"
    refused(message(role="user\0x"), "messages[0].role", words)
    refused(message(content=[{"type": "text\0x", "text": "x"}]), "messages[0].content[0].type",
            words)
    refused(user("x", model=f"{DEMO}\0x"), "model", words)
    refused({"prompt": "x", "model": f"{DEMO}\0x"}, "model", words, "/v1/completions")
    refused({"prompt": "x", "model": f"{DEMO}\0x"}, "model", words, "/tokenize")
    refused({"tokens": [1], "model": f"{DEMO}\0x"}, "model", words, "/detokenize")
    refused(user("x", documents_placement="system\0"), "documents_placement", words)
    refused(user("x", response_format={"type": "text\0"}), "response_format", words)
    for field in ("user", "safety_identifier", "prompt_cache_key", "service_tier", "verbosity"):
        refused(user("x", **{field: "a\0b"}), field, words)
    # As a text that is no C string it is a character as any other.
    SERVER.post(CHAT, user("a\0b", stop=["\0"], session_id="a\0b", cache_salt="a\0b"))


def an_empty_text_is_named() -> None:
    refused({"messages": [{"role": "user", "content": [{"type": "text", "text": ""}]}]},
            "messages[0].content[0].text", "must not be empty")
    refused(user("x", documents=[{"title": "a", "text": ""}]), "documents[0].text",
            "must not be empty")
    refused({"prompt": ""}, "prompt", "must not be empty", "/v1/completions")


# --- fields ---

def openais_fields_without_effect_are_taken() -> None:
    plain = SERVER.post(CHAT, user("x", seed=1))
    assert "service_tier" not in plain
    answer = SERVER.post(CHAT, user(
        "x", seed=1, reasoning_effort="low", verbosity="high", store=True, service_tier="auto",
        metadata={"a": "b"}, user="me", safety_identifier="s", prompt_cache_key="k",
        prompt_cache_retention="24h", parallel_tool_calls=True,
        prediction={"type": "content", "content": "x"}))
    assert answer["service_tier"] == "default", answer
    assert answer["choices"] == plain["choices"]
    assert answer["usage"]["completion_tokens_details"] == {
        "accepted_prediction_tokens": 0, "audio_tokens": 0, "reasoning_tokens": 0,
        "rejected_prediction_tokens": 0}
    refused(user("x", reasoning_effort="huge"), "reasoning_effort", "none of none|minimal|low")
    refused(user("x", store="yes"), "store", "expected a boolean")
    frames = SERVER.stream(CHAT, user("x", service_tier="flex",
                                      stream_options={"include_usage": True}))[0]
    assert all(f["service_tier"] == "default" for f in frames), frames
    assert frames[-1]["usage"]["completion_tokens_details"]["reasoning_tokens"] == 0, frames


def unsupported_openai_fields_are_400() -> None:
    for field, value in (("audio", {"voice": "x"}), ("modalities", ["audio"]),
                         ("response_format", {"type": "grammar"}), ("suffix", "x")):
        refused(user("x", **{field: value}), field, "supported")
    refused({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content[0].type", "not supported")


def a_seed_has_64_bits() -> None:
    for seed in (2**63 - 1, -2**63):
        SERVER.post(CHAT, user("x", seed=seed))
    for seed in (2**63, -2**63 - 1, 10**40, 1.5):
        refused(user("x", seed=seed), "seed", "outside" if seed != 1.5 else "expected an integer")


def warnings(name: str) -> list[str]:
    return [line for line in SERVER.log_text().splitlines()
            if "unknown fields ignored" in line and name in line]


def a_misspelt_field_is_named_once_in_the_log() -> None:
    for _ in range(3):
        status, headers, _ = SERVER.request("POST", CHAT, user("x", temprature=0))
        assert status == 200 and headers[HEADER] == "temprature (did you mean temperature?)"
    lines = warnings("temprature")
    assert len(lines) == 1 and "temprature (did you mean temperature?)" in lines[0], lines
    # In a stream, in stream_options, in an error and elsewhere too.
    status, headers, _ = SERVER.request("POST", CHAT, user(
        "x", stream=True, stream_options={"include_usgae": True}))
    assert status == 200
    assert headers[HEADER] == "stream_options.include_usgae (did you mean include_usage?)"
    assert HEADER in SERVER.request("POST", CHAT, {"message": []})[1]
    assert SERVER.request("POST", "/tokenize", {"prompt": "x", "add_special_token": True})[1][
        HEADER] == "add_special_token (did you mean add_special_tokens?)"
    assert HEADER not in SERVER.request("POST", CHAT, user("x"))[1]


def names_of_unknown_fields_are_harmless_and_bounded() -> None:
    before = len(SERVER.log_text())
    evil = "evil\n2026-01-01 ERROR \"faked\" \x1b[31m\r\nSet-Cookie: a=b"
    status, headers, _ = SERVER.request("POST", CHAT, user("x", **{evil: 1}))
    assert status == 200 and "set-cookie" not in headers, headers
    assert headers[HEADER].startswith("evil?2026-01-01?ERROR??faked"), headers
    log = SERVER.log_text()[before:]
    assert "\x1b" not in log and not any(line.startswith("2026-01-01 ERROR") for line in
                                         log.splitlines()), log
    # Very many of them: one line, and a header of one line. The answer may also be that these are
    # too many values.
    before = len(SERVER.log_text())
    many = json.dumps({**user("x"), **{f"f{i}": 0 for i in range(200_000)}}).encode()
    status, headers, _ = SERVER.request("POST", CHAT, many)
    log = [line for line in SERVER.log_text()[before:].splitlines() if "unknown field" in line]
    assert len(log) <= 1 and len("".join(log)) < 4096, log[:2000]
    assert status in (400, 413) or "more" in headers[HEADER] and len(headers[HEADER]) < 256


def the_log_names_a_bounded_number_of_unknown_fields() -> None:
    before = SERVER.log_text().count("unknown fields ignored")
    for i in range(100):
        assert SERVER.request("POST", "/tokenize", {"prompt": "x", f"g{i}": 1})[1][
            HEADER] == f"g{i}"
    n_lines = SERVER.log_text().count("unknown fields ignored") - before
    assert 20 < n_lines <= 64, n_lines


# --- start ---

def started(*options: str, env: dict[str, str] | None = None) -> str:
    """The message of a server that refuses to start."""
    done = subprocess.run([str(tarn_test.program("tarn-server")), "--model", str(DEMO), "--port",
                           "0", *options], capture_output=True, text=True,
                           timeout=tarn_test.patience(60),
                          env={**os.environ, **(env or {})})
    assert done.returncode == 1, done
    return done.stderr


def an_empty_key_does_not_open_the_server() -> None:
    words = "is empty; give a key, or leave the option out"
    assert f"--api-key: {words}" in started("--api-key", "")
    assert f"TARN_API_KEY: {words}" in started(env={"TARN_API_KEY": "\n"})
    assert f"--admin-api-key: {words}" in started("--admin-api-key", " ")
    assert "one of the keys is empty" in started("--api-key", "a,,b")


def a_list_of_names_is_trimmed() -> None:
    assert '"," has an empty name' in started("--served-model-name", ",")
    with tarn_server(DEMO, "--no-profile-cost", "--served-model-name", " a, b c ",
                     "--api-key", "one, two\n") as server:
        def ask(path: str, key: str) -> tuple[int, Any]:
            c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=tarn_test.patience(60))
            c.request("GET", path, headers={"Authorization": f"Bearer {key}"})
            response = c.getresponse()
            answer = json.loads(response.read())
            c.close()
            return response.status, answer
        assert [m["id"] for m in ask("/v1/models", "two")[1]["data"]] == ["a", "b c"]
        assert ask("/v1/models/a", "one")[1]["id"] == "a"
        assert ask("/v1/models", "three")[0] == 401


if __name__ == "__main__":
    with tarn_server(DEMO, "--no-profile-cost") as SERVER:
        sys.exit(run_tests([
            a_tool_clients_history_is_rendered, a_template_that_knows_more_gets_more,
            a_history_that_cannot_be_read_is_named, a_nul_is_400_and_names_the_field,
            an_empty_text_is_named, openais_fields_without_effect_are_taken,
            unsupported_openai_fields_are_400, a_seed_has_64_bits,
            a_misspelt_field_is_named_once_in_the_log,
            names_of_unknown_fields_are_harmless_and_bounded,
            the_log_names_a_bounded_number_of_unknown_fields,
            an_empty_key_does_not_open_the_server, a_list_of_names_is_trimmed]))
