#!/usr/bin/env python3
"""A request's own chat template: refused, or trusted and bounded."""
from __future__ import annotations

import json
import sys
import tempfile
import time
from typing import Any

from http_helpers import Server, run_tests, tarn_server
from test_reasoning import THINKS
from test_tools import CODER, HERMES, TOOLS, make_folder

CHAT = "/v1/chat/completions"
SERVERS: dict[str, Server] = {}
PLAIN = "<|user|>{% for m in messages %}[{{ m.content }}]{% endfor %}<|assistant|>"


def ask(template: Any, path: str = CHAT, name: str = "trusting", **more: Any) -> Any:
    return SERVERS[name].request("POST", path, {
        "messages": [{"role": "user", "content": "Weather?"}], "max_tokens": 4,
        "chat_template": template, **more})


def prompt_of(template: Any, **more: Any) -> str:
    status, _, answer = ask(template, CHAT + "/render", **more)
    assert status == 200, answer
    status, _, text = SERVERS["trusting"].request("POST", "/detokenize",
                                                  {"tokens": answer["token_ids"]})
    assert status == 200, text
    return text["prompt"]


def a_template_is_refused_unless_the_flag_allows_it() -> None:
    status, _, answer = ask(PLAIN, name="wary")
    assert status == 400 and answer["error"]["param"] == "chat_template", answer
    assert "--trust-request-chat-template" in answer["error"]["message"], answer
    assert ask("", name="wary")[0] == ask(None, name="wary")[0] == 200


def a_template_renders_its_request_alone() -> None:
    own = prompt_of(None)
    assert prompt_of(PLAIN) == "<|user|>[Weather?]<|assistant|>" != own
    assert prompt_of(None) == own
    for i in range(40):  # more than are kept
        assert prompt_of(f"{i}{PLAIN}").startswith(f"{i}<|user|>")
    assert prompt_of(PLAIN) == "<|user|>[Weather?]<|assistant|>"


def a_template_says_what_follows_from_it() -> None:
    """Whether tools are known and how calls are written, and where reasoning begins."""
    status, _, answer = ask(PLAIN, tools=TOOLS)
    assert status == 400 and "does not know tools" in answer["error"]["message"], answer
    for template in (CODER, HERMES):
        status, _, answer = ask(template, tools=TOOLS, tool_choice="required", max_tokens=300,
                                parallel_tool_calls=False, seed=1)
        assert status == 200 and answer["choices"][0]["message"]["tool_calls"], answer
    status, _, answer = ask(THINKS, chat_template_kwargs={"begins": True})
    assert status == 200 and answer["choices"][0]["message"]["reasoning"], answer


def faults_are_400_and_named() -> None:
    for template, words in (("{% if %}", "chat template line 1"), ("x" * 70000, "at most 65536"),
                            (["x"], "chat_template"), ("{{ 1 / 0 }}", "division by zero")):
        status, _, answer = ask(template)
        assert status == 400 and words in answer["error"]["message"], answer


def a_hostile_template_ends_soon() -> None:
    """Each would take minutes, or all memory, without bounds."""
    big = "{% set ns = namespace(s='a' * 500000, t='') %}"
    loops = "{% for a in range(99999) %}{% for b in range(99999) %}"
    ends = "{% endfor %}{% endfor %}"
    for template in (
            loops + ends,
            big + "{% set u = ns.s ~ '' %}" + loops + "{% if ns.s == u %}{% endif %}" + ends,
            big + "{% set u = 'b' ~ ns.s[:250000] %}{{ ns.s.rfind(u) }}" + loops +
            "{% set x = ns.s.rfind(u) %}" + ends,
            big + loops + "{% set x = ns.s.strip(ns.s) %}" + ends,
            "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
            "{% set ns = namespace(s='ab') %}{% for i in range(60) %}"
            "{% set ns.s = ns.s ~ ns.s %}{% endfor %}", "{{ " + "(" * 400):
        began = time.monotonic()
        status, _, answer = ask(template)
        assert status in (400, 413), (template, answer)
        assert time.monotonic() - began < 20, template  # unbounded: minutes
    assert ask(PLAIN)[0] == 200


TESTS = [a_template_is_refused_unless_the_flag_allows_it, a_template_renders_its_request_alone,
         a_template_says_what_follows_from_it, faults_are_400_and_named,
         a_hostile_template_ends_soon]


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="tarn-template-") as root:
        folder = make_folder(root, "m", HERMES)
        with (tarn_server(folder) as SERVERS["wary"],
              tarn_server(folder, "--trust-request-chat-template") as SERVERS["trusting"]):
            return run_tests(TESTS)


if __name__ == "__main__":
    sys.exit(main())
