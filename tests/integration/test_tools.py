#!/usr/bin/env python3
"""Calls of tools: the official openai package asks models whose chat templates know tools. Grammars
make the calls, so models that never saw a tool write them.

Skipped where the package cannot be had (venv_helpers.py).
"""
from __future__ import annotations

import json
import shutil
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from http_helpers import TIMEOUT, Server, run_tests, tarn_server
from tarn_test import REPO
from venv_helpers import use_venv

use_venv("openai")
import openai  # noqa: E402

CHAT = "/v1/chat/completions"
DEMO = REPO / "deploy" / "demo-model"
# How the templates of Hermes and Qwen write tools, calls and results, shortened.
HERMES = r"""<|system|>
{% if tools %}<tools>{% for t in tools %}
{{ t | tojson }}{% endfor %}
</tools>
For each call: <tool_call>
{"name": <name>, "arguments": <arguments>}
</tool_call>
{% endif %}{% for m in messages %}<|user|>
{{ m.role }}: {{ m.content }}{% for c in m.tool_calls %}
<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}
<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>
{% endif %}"""
MISTRAL = (HERMES.replace('<tool_call>\n{"name": <name>, "arguments": <arguments>}\n</tool_call>',
                          "[TOOL_CALLS] [...]")
           .replace("<tool_call>\n{\"name\": \"{{", "[TOOL_CALLS] [{\"name\": \"{{")
           .replace("}}}\n</tool_call>", "}}}]"))
LLAMA = HERMES.replace(
    '<tool_call>\n{"name": <name>, "arguments": <arguments>}\n</tool_call>',
    '{"name": function name, "parameters": dictionary of argument name and its value}')
CODER = HERMES.replace(
    '<tool_call>\n{"name": <name>, "arguments": <arguments>}\n</tool_call>',
    "<tool_call>\n<function=name>\n<parameter=key>\nvalue\n</parameter>\n</function>\n</tool_call>")
WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "The weather of a town.", "parameters": {
        "type": "object", "properties": {
            "town": {"type": "string", "maxLength": 12}, "unit": {"enum": ["C", "F"]},
            "days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["town", "unit", "days"], "additionalProperties": False}}}
CLOCK = {"type": "function", "function": {"name": "clock"}}
TOOLS = [WEATHER, CLOCK]

SERVERS: dict[str, Server] = {}
CLIENTS: dict[str, openai.OpenAI] = {}


def make_folder(root: str, name: str, template: str, special: str = "") -> Path:
    """The demo model with another template. special: the spelling of its special token <|doc|>."""
    path = Path(root) / name
    shutil.copytree(DEMO, path)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        text = (path / file).read_text()
        if special:
            text = text.replace("<|doc|>", special)
        data = json.loads(text)
        if file == "tokenizer_config.json":
            data["chat_template"] = template
        (path / file).write_text(json.dumps(data))
    return path


def ask(name: str, **more: Any) -> Any:
    return CLIENTS[name].chat.completions.create(**{
        "model": "", "messages": [{"role": "user", "content": "Weather?"}], "tools": TOOLS,
        "max_tokens": 400, "seed": 1, "temperature": 0.8, **more})


def check_call(call: Any) -> None:
    arguments = json.loads(call.function.arguments)
    if call.function.name == "clock":
        assert arguments == {}, call
    else:
        assert call.function.name == "get_weather", call
        assert set(arguments) == {"town", "unit", "days"} and arguments["unit"] in "CF", call
        assert len(arguments["town"]) <= 12 and 1 <= arguments["days"] <= 9, call


def a_required_call_comes_in_every_format() -> None:
    ids = set()
    for name in CLIENTS:
        for seed in range(2):
            choice = ask(name, tool_choice="required", parallel_tool_calls=False,
                         seed=seed).choices[0]
            assert choice.finish_reason == "tool_calls" and choice.message.content is None, choice
            assert len(choice.message.tool_calls) == 1, (name, choice)
            check_call(choice.message.tool_calls[0])
            ids.add(choice.message.tool_calls[0].id)
    assert len(ids) == 2 * len(CLIENTS), ids


def a_named_function_is_called_once() -> None:
    for name in CLIENTS:
        for function in ("get_weather", "clock"):
            message = ask(name, tool_choice={"type": "function",
                                             "function": {"name": function}}).choices[0].message
            assert [c.function.name for c in message.tool_calls] == [function], message
            check_call(message.tool_calls[0])


def several_calls_may_come() -> None:
    most = 0
    for name in CLIENTS:
        for seed in range(3):
            choice = ask(name, tool_choice="required", seed=seed, temperature=1.5,
                         max_tokens=200).choices[0]
            calls = choice.message.tool_calls or []
            assert len({c.id for c in calls}) == len(calls)
            for call in calls if choice.finish_reason == "tool_calls" else calls[:-1]:
                check_call(call)
            most = max(most, len(calls))
    assert most > 1, most


def a_stream_gives_the_same_calls() -> None:
    for name in CLIENTS:
        whole = ask(name, tool_choice="required", parallel_tool_calls=False).choices[0]
        calls: dict[int, dict[str, str]] = {}
        text, reason = "", None
        for chunk in ask(name, tool_choice="required", parallel_tool_calls=False, stream=True):
            delta, reason = chunk.choices[0].delta, chunk.choices[0].finish_reason or reason
            text += delta.content or ""
            for piece in delta.tool_calls or ():
                if piece.index not in calls:
                    assert piece.id and piece.type == "function" and piece.function.name, piece
                    calls[piece.index] = {"name": piece.function.name, "arguments": ""}
                else:
                    assert not piece.id and not piece.function.name, piece
                calls[piece.index]["arguments"] += piece.function.arguments or ""
        call = whole.message.tool_calls[0].function
        assert list(calls.values()) == [{"name": call.name, "arguments": call.arguments}], calls
        assert (text, reason) == ("", "tool_calls")


def the_stream_helper_gathers_calls() -> None:
    with CLIENTS["hermes"].chat.completions.stream(
            model="", messages=[{"role": "user", "content": "?"}], tools=[{
                **WEATHER, "function": {**WEATHER["function"], "strict": True}}],
            tool_choice="required", parallel_tool_calls=False, seed=2) as stream:
        kinds = {event.type for event in stream}
        message = stream.get_final_completion().choices[0].message
    assert {"tool_calls.function.arguments.delta", "tool_calls.function.arguments.done"} <= kinds
    assert message.tool_calls[0].function.parsed_arguments["unit"] in "CF", message


def a_result_can_be_sent_back() -> None:
    for name in CLIENTS:
        said = ask(name, tool_choice="required", parallel_tool_calls=False).choices[0].message
        answer = ask(name, tool_choice="none", max_tokens=8, messages=[
            {"role": "user", "content": "Weather?"}, said,
            {"role": "tool", "tool_call_id": said.tool_calls[0].id, "content": "18 C"}])
        assert answer.choices[0].message.tool_calls is None
        assert answer.choices[0].finish_reason in ("stop", "length")


def what_is_no_call_is_text() -> None:
    """Without a grammar the model, which knows no tools, writes text as if it had none."""
    for name in CLIENTS:
        free = ask(name, temperature=0, max_tokens=40).choices[0]
        plain = ask(name, temperature=0, max_tokens=40, tool_choice="none").choices[0]
        assert free.message.tool_calls is None and plain.message.tool_calls is None
        # White space at the end may be held back only before a call.
        assert free.message.content == plain.message.content, (free, plain)
        assert free.finish_reason == plain.finish_reason


def strict_functions_of_auto_are_bound() -> None:
    """A bias towards the marker makes the model call; the arguments follow the schema."""
    strict = [{**WEATHER, "function": {**WEATHER["function"], "strict": True}}]
    for name, marker in (("special", "<tool_call>"), ("mistral", "[TOOL_CALLS]")):
        status, _, found = SERVERS[name].request("POST", "/tokenize", {"prompt": marker,
                                                                       "add_special_tokens": False})
        assert status == 200 and len(found["tokens"]) == 1, found
        choice = ask(name, tools=strict, parallel_tool_calls=False,
                     logit_bias={str(found["tokens"][0]): 100}).choices[0]
        assert choice.finish_reason == "tool_calls" and len(choice.message.tool_calls) == 1, choice
        check_call(choice.message.tool_calls[0])


def an_answer_of_a_form_or_calls() -> None:
    kinds = set()
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {
        "type": "object", "properties": {"is_warm": {"type": "boolean"}}, "required": ["is_warm"],
        "additionalProperties": False}}}
    for name in CLIENTS:
        for seed in range(2):
            choice = ask(name, response_format=form, parallel_tool_calls=False, seed=seed,
                         tools=[CLOCK], temperature=2).choices[0]
            kinds.add(choice.finish_reason)
            if choice.finish_reason == "stop":
                assert isinstance(json.loads(choice.message.content)["is_warm"], bool), choice
            elif choice.finish_reason == "tool_calls":
                assert choice.message.tool_calls[0].function.name == "clock", choice
    assert "stop" in kinds, kinds


def an_answer_is_the_same_alone_and_in_a_batch() -> None:
    def one(seed: int) -> Any:
        message = ask("hermes", tool_choice="required", parallel_tool_calls=False, seed=seed,
                      temperature=1.2).choices[0].message
        return [(c.function.name, c.function.arguments) for c in message.tool_calls]
    alone = [one(seed) for seed in range(6)]
    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(one, range(6))) == alone


def a_cut_call_ends_by_length() -> None:
    choice = ask("hermes", tool_choice={"type": "function", "function": {"name": "get_weather"}},
                 max_tokens=30).choices[0]
    assert choice.finish_reason == "length", choice


def tools_are_part_of_the_prompt_in_their_order() -> None:
    status, _, answer = SERVERS["hermes"].request("POST", CHAT + "/render", {
        "messages": [{"role": "user", "content": "?"}], "tools": TOOLS})
    assert status == 200, answer
    status, _, text = SERVERS["hermes"].request("POST", "/detokenize",
                                                {"tokens": answer["token_ids"]})
    assert status == 200 and json.dumps(WEATHER) in text["prompt"], text


def faults_are_400_and_named() -> None:
    body = {"messages": [{"role": "user", "content": "x"}]}
    function = WEATHER["function"]
    for more, param, words in (
            ({"tools": {}}, "tools", "expected an array"),
            ({"tools": [{"type": "custom"}]}, "tools", "not supported"),
            ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools", "letters"),
            ({"tools": [CLOCK, CLOCK]}, "tools", "another tool"),
            ({"tools": TOOLS, "tool_choice": "all"}, "tool_choice", "none of"),
            ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools"}}, "tool_choice", "allowed"),
            ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}},
             "tool_choice", "no tool has the name"),
            ({"tool_choice": "required"}, "tool_choice", "needs tools"),
            ({"tools": TOOLS, "guided_regex": "a"}, "tools", "response_format"),
            ({"tools": [{"type": "function", "function": {
                **function, "parameters": {"$ref": "http://x/y"}}}], "tool_choice": "required"},
             "tools", "the parameters of get_weather"),
            ({"functions": 5}, "functions", "expected an array")):
        status, _, answer = SERVERS["hermes"].request("POST", CHAT, {**body, **more})
        assert status == 400, (more, answer)
        assert answer["error"]["param"].startswith(param), answer
        assert words in answer["error"]["message"], answer


TESTS = [a_required_call_comes_in_every_format, a_named_function_is_called_once,
         several_calls_may_come, a_stream_gives_the_same_calls, the_stream_helper_gathers_calls,
         a_result_can_be_sent_back, what_is_no_call_is_text, strict_functions_of_auto_are_bound,
         an_answer_of_a_form_or_calls, an_answer_is_the_same_alone_and_in_a_batch,
         a_cut_call_ends_by_length,
         tools_are_part_of_the_prompt_in_their_order, faults_are_400_and_named]


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="tarn-tools-") as root:
        with (tarn_server(make_folder(root, "h", HERMES)) as SERVERS["hermes"],
              tarn_server(make_folder(root, "s", HERMES, "<tool_call>")) as SERVERS["special"],
              tarn_server(make_folder(root, "m", MISTRAL, "[TOOL_CALLS]")) as SERVERS["mistral"],
              tarn_server(make_folder(root, "l", LLAMA)) as SERVERS["llama"],
              tarn_server(make_folder(root, "c", CODER)) as SERVERS["coder"],
              tarn_server(make_folder(root, "p", HERMES), "--tool-call-parser", "pythonic")
              as SERVERS["python"],
              tarn_server(make_folder(root, "d", HERMES), "--tool-call-parser", "deepseek_v31")
              as SERVERS["deepseek"]):
            for name, server in SERVERS.items():
                CLIENTS[name] = openai.OpenAI(base_url=server.url + "/v1", api_key="x",
                                              max_retries=0, timeout=TIMEOUT)
            return run_tests(TESTS)


if __name__ == "__main__":
    sys.exit(main())
