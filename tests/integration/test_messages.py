#!/usr/bin/env python3
"""/v1/messages: the official anthropic package asks, streams, calls tools, and gets its errors.

Skipped where the package cannot be had (venv_helpers.py).
"""
from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any, Literal

from http_helpers import TIMEOUT, Server, run_tests, tarn_server, wait_until
from tarn_test import REPO
from test_reasoning import THINKS
from test_tools import make_folder
from venv_helpers import use_venv

use_venv("anthropic")
import anthropic  # noqa: E402
from pydantic import BaseModel  # noqa: E402

DEMO = REPO / "deploy" / "demo-model"
# It shows the fields about thinking, and has the thoughts of the history.
TEMPLATE = ("{% if enable_thinking %}Think of the ship and of its captain: "
            "{{ reasoning_effort }}.{% endif %}" + THINKS)
WEATHER = {"name": "get_weather", "description": "The weather of a town.", "input_schema": {
    "type": "object", "properties": {
        "town": {"type": "string", "maxLength": 12}, "unit": {"enum": ["C", "F"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["town", "unit", "days"], "additionalProperties": False}}
CLOCK = {"name": "clock", "input_schema": {"type": "object"}}
TOOLS = [WEATHER, CLOCK]
FORM = {"type": "json_schema", "schema": {
    "type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"],
    "additionalProperties": False}}
QUESTION = [{"role": "user", "content": "Who is the captain of Kumnordim?"}]
SHIP = "Kumnordim is a ship. The captain of Kumnordim is Stamos."

SERVERS: dict[str, Server] = {}
CLIENTS: dict[str, anthropic.Anthropic] = {}


def fields(more: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call; the package has no temperature, which the API has."""
    more = dict(more)
    extra = {"seed": 1, **more.pop("extra_body", {})}
    if "temperature" in more:
        extra["temperature"] = more.pop("temperature")
    return {"model": "", "messages": QUESTION, "max_tokens": 32, **more, "extra_body": extra}


def ask(name: str = "demo", **more: Any) -> Any:
    return CLIENTS[name].messages.create(**fields(more))


def ask_chat(body: dict[str, Any], name: str = "demo") -> dict[str, Any]:
    status, _, answer = SERVERS[name].request("POST", "/v1/chat/completions", {
        "seed": 1, "max_tokens": 32, **body}, {"x-api-key": "sk-right-key"})
    assert status == 200, answer
    return answer


def text_of(message: Any) -> str:
    assert [block.type for block in message.content] == ["text"], message
    return message.content[0].text


def parts(message: Any) -> Any:
    return [b.model_dump(include={"type", "text", "thinking", "signature"})
            for b in message.content]


def n_input(usage: Any) -> int:
    return (usage.input_tokens + usage.cache_read_input_tokens
            + usage.cache_creation_input_tokens)


def check_call(block: Any) -> None:
    assert block.type == "tool_use" and block.id, block
    if block.name == "clock":
        assert block.input == {}, block
    else:
        assert block.name == "get_weather" and set(block.input) == {"town", "unit", "days"}, block
        assert block.input["unit"] in "CF" and 1 <= block.input["days"] <= 9, block


# --- messages ---


def an_answer_is_that_of_a_chat() -> None:
    """system is a message, blocks are parts, and the tokens are those of a chat."""
    said = ask(system="Be short.", temperature=0)
    chat = ask_chat({"messages": [{"role": "system", "content": "Be short."}, *QUESTION],
                     "temperature": 0})
    assert text_of(said) == chat["choices"][0]["message"]["content"]
    assert (said.type, said.role, said.model) == ("message", "assistant", chat["model"]), said
    assert n_input(said.usage) == chat["usage"]["prompt_tokens"], said
    assert said.usage.output_tokens == chat["usage"]["completion_tokens"], said
    blocks = ask(system=[{"type": "text", "text": "Be short."}], temperature=0, messages=[
        {"role": "user", "content": [{"type": "text", "text": QUESTION[0]["content"]}]}])
    assert text_of(blocks) == text_of(said)


def an_answer_says_why_it_ended() -> None:
    whole = ask(temperature=0, extra_body={"documents": [{"text": SHIP}]})
    assert whole.stop_reason == "end_turn" and whole.stop_sequence is None, whole
    word = text_of(whole).split()[0]
    cut = ask(temperature=0, stop_sequences=["~~", word],
              extra_body={"documents": [{"text": SHIP}]})
    assert (cut.stop_reason, cut.stop_sequence) == ("stop_sequence", word), cut
    short = ask(temperature=0, max_tokens=1)
    assert short.stop_reason == "max_tokens" and short.usage.output_tokens == 1, short
    long = ask("tools", max_tokens=10 ** 6, extra_body={"ignore_eos": True})
    assert long.stop_reason == "model_context_window_exceeded", long.stop_reason


def a_stream_is_the_same_message_in_events() -> None:
    whole = ask(temperature=0.7)
    with CLIENTS["demo"].messages.stream(**fields({"temperature": 0.7})) as stream:
        events = list(stream)
        final = stream.get_final_message()
    assert text_of(final) == text_of(whole) and final.stop_reason == whole.stop_reason
    assert "".join(e.text for e in events if e.type == "text") == text_of(whole)
    assert n_input(final.usage) == n_input(whole.usage), final.usage
    assert final.usage.output_tokens == whole.usage.output_tokens, final.usage
    raw = [e.type for e in ask(temperature=0.7, stream=True)]
    assert raw[:2] == ["message_start", "content_block_start"], raw
    assert raw[-3:] == ["content_block_stop", "message_delta", "message_stop"], raw
    assert set(raw[2:-3]) == {"content_block_delta"}, raw


def a_last_message_of_the_assistant_is_continued() -> None:
    whole = ask_chat({"messages": [*QUESTION, {"role": "assistant", "content": "The captain"}],
                      "continue_final_message": True, "temperature": 0})
    for content in ("The captain", [{"type": "text", "text": "The captain"}]):
        said = ask(messages=[*QUESTION, {"role": "assistant", "content": content}], temperature=0)
        assert text_of(said) == whole["choices"][0]["message"]["content"], (said, whole)
        assert n_input(said.usage) == whole["usage"]["prompt_tokens"], said


def tokens_are_counted() -> None:
    for more in ({}, {"system": "Be short."}, {"messages": [*QUESTION, {
            "role": "assistant", "content": "Hm."}, *QUESTION]}):
        body = {"messages": QUESTION, **more}
        counted = CLIENTS["demo"].messages.count_tokens(model="", **body)
        assert counted.input_tokens == n_input(ask(**body, max_tokens=1).usage), counted
    with_tools = CLIENTS["tools"].messages.count_tokens(model="", messages=QUESTION, tools=TOOLS)
    without = CLIENTS["tools"].messages.count_tokens(model="", messages=QUESTION)
    assert with_tools.input_tokens > without.input_tokens + 40, with_tools


def a_document_is_a_document_of_the_prompt() -> None:
    chat = ask_chat({"messages": QUESTION, "documents": [{"title": "Ship", "text": SHIP}],
                     "temperature": 0})
    sources = ({"type": "text", "media_type": "text/plain", "data": SHIP},
               {"type": "content", "content": [{"type": "text", "text": SHIP}]})
    for source in sources:
        said = ask(temperature=0, messages=[{"role": "user", "content": [
            {"type": "document", "title": "Ship", "source": source},
            {"type": "text", "text": QUESTION[0]["content"]}]}])
        assert text_of(said) == chat["choices"][0]["message"]["content"], said
        assert n_input(said.usage) == chat["usage"]["prompt_tokens"], (said, chat)
        assert said.documents["used"][0]["title"] == "Ship", said
    assert "Stamos" in text_of(said), said


def cache_control_holds_the_prompt() -> None:
    """What a breakpoint newly holds is counted as created, and later as read."""
    system = [{"type": "text", "text": "You know all ships of the sea. " * 40,
               "cache_control": {"type": "ephemeral"}}]
    first = ask("tools", system=system, max_tokens=4)
    assert first.usage.cache_creation_input_tokens > 100, first.usage
    assert first.usage.cache_read_input_tokens == 0 and first.usage.input_tokens > 0, first.usage
    second = ask("tools", system=system, max_tokens=4,
                 messages=[{"role": "user", "content": "And who sails the Mirandol?"}])
    assert second.usage.cache_read_input_tokens >= first.usage.cache_creation_input_tokens, second
    assert second.usage.cache_creation_input_tokens == 0, second.usage
    plain = ask("tools", system="Nobody holds this. " * 60, max_tokens=4)
    assert plain.usage.cache_creation_input_tokens == 0, plain.usage
    held = ask("tools", tools=[{**WEATHER, "cache_control": {"type": "ephemeral", "ttl": "1h"}}],
               max_tokens=4)
    assert held.usage.cache_creation_input_tokens > 32, held.usage


def thinking_is_a_matter_of_the_template() -> None:
    def n(**more: Any) -> int:
        return CLIENTS["tools"].messages.count_tokens(model="", messages=QUESTION,
                                                      **more).input_tokens
    enabled = {"type": "enabled", "budget_tokens": 1024}
    assert n() == n(thinking={"type": "disabled"}) < n(thinking=enabled)
    assert n(thinking=enabled) < n(thinking=enabled, output_config={"effort": "xhigh"})
    thought = [{"type": "thinking", "thinking": "Whose captain? That of the ship.",
                "signature": "x"}, {"type": "text", "text": "Stamos."}]
    last = [{"role": "user", "content": "Sure?"}]
    short = n() + n(extra_body={"messages": [*QUESTION, {"role": "assistant",
                                                         "content": thought[1:]}, *last]})
    long = n() + n(extra_body={"messages": [*QUESTION, {"role": "assistant", "content": thought},
                                            *last]})
    assert long > short + 4, (long, short)


def thoughts_are_a_block_of_their_own() -> None:
    status, _, found = SERVERS["tools"].request("POST", "/tokenize", {
        "prompt": "</think>", "add_special_tokens": False})
    assert status == 200 and len(found["tokens"]) == 1, found
    more = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 200,
            "temperature": 0.8, "output_config": {"format": FORM}, "extra_body": {
                "chat_template_kwargs": {"begins": True, "enable_thinking": True}}}
    n_both, all_kinds = 0, []
    for seed in range(4):
        more["extra_body"].update(seed=seed, logit_bias={str(found["tokens"][0]): 8 + seed})
        whole = ask("tools", **more)
        with CLIENTS["tools"].messages.stream(**fields(more)) as stream:
            final = stream.get_final_message()
        assert parts(final) == parts(whole), (final, whole)
        kinds = [block.type for block in whole.content]
        assert kinds in (["thinking", "text"], ["thinking"], ["text"]), kinds
        n_both += len(kinds) == 2
        all_kinds.append(kinds)
        if kinds[0] == "thinking":
            assert whole.content[0].signature and whole.content[0].thinking, whole
            assert 0 < whole.usage.output_tokens_details.thinking_tokens <= 200, whole.usage
        more["thinking"]["display"] = "omitted"
        hidden = ask("tools", **more)
        del more["thinking"]["display"]
        assert [b.text for b in hidden.content] == [b.text for b in whole.content
                                                    if b.type == "text"], hidden
    assert n_both > 0, all_kinds


# --- tools ---


def a_tool_is_used_where_it_must_be() -> None:
    for choice in ({"type": "any"}, {"type": "tool", "name": "get_weather"},
                   {"type": "any", "disable_parallel_tool_use": True}):
        said = ask("tools", tools=TOOLS, tool_choice=choice, max_tokens=400, temperature=0.8)
        is_cut = choice == {"type": "any"} and said.stop_reason == "max_tokens"
        assert said.stop_reason == "tool_use" or is_cut, said
        for block in said.content[:-1] if is_cut else said.content:
            check_call(block)
        if choice != {"type": "any"}:
            assert len(said.content) == 1, said
        if "name" in choice:
            assert said.content[0].name == "get_weather", said
    none = ask("tools", tools=TOOLS, tool_choice={"type": "none"}, temperature=0)
    assert none.stop_reason in ("end_turn", "max_tokens"), none
    assert all(block.type == "text" for block in none.content), none


def several_tools_may_be_used() -> None:
    most = 0
    for seed in range(4):
        more = {"tools": TOOLS, "tool_choice": {"type": "any"}, "max_tokens": 200,
                "temperature": 1.5, "extra_body": {"seed": seed}}
        whole = ask("tools", **more)
        with CLIENTS["tools"].messages.stream(**fields(more)) as stream:
            events = list(stream)
            final = stream.get_final_message()
        assert [b.type for b in final.content] == [b.type for b in whole.content], (final, whole)
        for one, other in zip(whole.content[:-1], final.content[:-1]):
            assert (one.name, one.input) == (other.name, other.input), (whole, final)
        starts = [e.index for e in events if e.type == "content_block_start"]
        stops = [e.index for e in events if e.type == "content_block_stop"]
        assert starts == stops == list(range(len(final.content))), events
        most = max(most, len(whole.content))
    assert most > 1, most


def a_result_can_be_sent_back() -> None:
    said = ask("tools", tools=TOOLS, max_tokens=400, tool_choice={
        "type": "any", "disable_parallel_tool_use": True})
    results = [{"type": "tool_result", "tool_use_id": block.id, "is_error": i > 0,
                "content": [{"type": "text", "text": "18 C"}] if i else "18 C"}
               for i, block in enumerate(said.content)]
    history = [*QUESTION, {"role": "assistant", "content": said.content},
               {"role": "user", "content": [*results, {"type": "text", "text": "So?"}]}]
    answer = ask("tools", tools=TOOLS, tool_choice={"type": "none"}, messages=history)
    assert answer.stop_reason in ("end_turn", "max_tokens"), answer
    status, _, chat = SERVERS["tools"].request("POST", "/v1/chat/completions/render", {
        "chat_template_kwargs": {"enable_thinking": False},
        "tools": [{"type": "function", "function": {
            "name": t["name"], "parameters": t["input_schema"],
            **({"description": t["description"]} if "description" in t else {})}} for t in TOOLS],
        "messages": [*QUESTION, {"role": "assistant", "tool_calls": [
            {"id": b.id, "type": "function",
             "function": {"name": b.name, "arguments": json.dumps(b.input)}}
            for b in said.content]},
            *({"role": "tool", "tool_call_id": b.id, "content": "18 C"} for b in said.content),
            {"role": "user", "content": "So?"}]})
    assert status == 200 and len(chat["token_ids"]) == n_input(answer.usage), (status, answer)


def an_answer_has_the_form_that_was_asked_for() -> None:
    class Captain(BaseModel):
        name: Literal["Stamos", "Tavish"]
        is_old: bool

    said = ask(output_config={"format": FORM}, max_tokens=60)
    assert isinstance(json.loads(text_of(said))["ok"], bool), said
    parsed = CLIENTS["demo"].messages.parse(**fields({"output_format": Captain, "max_tokens": 400,
                                                      "temperature": 0.2}))
    assert isinstance(parsed.parsed_output, Captain), parsed


# --- errors ---


def faults_are_400_and_named() -> None:
    user = {"role": "user"}
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
    pdf = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf",
                                          "data": ""}}
    for more, field, words in (
            ({"max_tokens": None}, "max_tokens", "is required"),
            ({"messages": []}, "messages", "1 to"),
            ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role", "none of"),
            ({"messages": [{**user, "content": [image]}]}, "messages[0].content[0].type",
             '"image" blocks are not supported'),
            ({"messages": [{**user, "content": [pdf]}]}, "messages[0].content[0].source.type",
             "plain text"),
            ({"messages": [{**user, "content": [{"type": "text", "text": ""}]}]},
             "messages[0].content[0].text", "empty"),
            ({"messages": [{**user, "content": [{"type": "tool_use", "id": "a", "name": "b",
                                                 "input": {}}]}]},
             "messages[0].content[0].type", "no block of the role"),
            ({"messages": [{**user, "content": [{"type": "text", "text": "x", "cache_control": {
                "type": "eternal"}}]}]}, "messages[0].content[0].cache_control.type", "ephemeral"),
            ({"system": [image]}, "system[0].type", "only"),
            ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type",
             "runs no tools"),
            ({"tools": [{"name": "x"}]}, "tools[0].input_schema", "object"),
            ({"tools": TOOLS, "tool_choice": {"type": "every"}}, "tool_choice.type", "none of"),
            ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens", "required"),
            ({"stop_sequences": "x"}, "stop_sequences", "array"),
            ({"temperature": "hot"}, "temperature", "number"),
            ({"mcp_servers": [{"name": "x"}]}, "mcp_servers", "not supported")):
        status, headers, answer = SERVERS["tools"].request(
            "POST", "/v1/messages", {"messages": QUESTION, "max_tokens": 4, **more})
        assert status == 400, (more, answer)
        assert answer["type"] == "error" and answer["request_id"] == headers["request-id"], answer
        assert answer["error"]["type"] == "invalid_request_error", answer
        assert answer["error"]["message"].startswith(field + ": "), answer
        assert words in answer["error"]["message"], answer


def every_refusal_has_anthropics_form() -> None:
    server, path = SERVERS["demo"], "/v1/messages"
    body = {"messages": QUESTION, "max_tokens": 1}
    key = {"x-api-key": "sk-right-key"}
    for method, where, sent, headers, status, kind in (
            ("POST", path, body, {}, 401, "authentication_error"),
            ("POST", path, body, {"x-api-key": "sk-wrong-key"}, 401, "authentication_error"),
            ("GET", path, None, key, 405, "invalid_request_error"),
            ("POST", path + "/batches", body, key, 404, "not_found_error"),
            ("POST", path, {**body, "model": "nobody"}, key, 404, "not_found_error"),
            ("POST", path, b"{", key, 400, "invalid_request_error"),
            ("POST", path, b" " * (1 << 20), key, 413, "request_too_large"),
            ("GET", "/v1/nothing", None, {**key, "anthropic-version": "2023-06-01"}, 404,
             "not_found_error")):
        got, answered, answer = server.request(method, where, sent, headers)
        assert got == status, (where, got, answer)
        assert answer["type"] == "error" and answer["error"]["type"] == kind, answer
        assert answer["error"]["message"] and answered["request-id"] == answer["request_id"]
    got, _, answer = server.request("GET", "/v1/nothing", None, key)
    assert got == 404 and "type" not in answer, answer


def the_package_raises_its_errors() -> None:
    def raised(client: anthropic.Anthropic, **more: Any) -> Any:
        try:
            client.messages.create(**fields(more))
        except anthropic.APIStatusError as error:
            return error
        raise AssertionError("no error")

    demo = CLIENTS["demo"]
    error = raised(demo, model="nobody")
    assert isinstance(error, anthropic.NotFoundError) and error.type == "not_found_error", error
    assert error.request_id, error
    assert isinstance(raised(demo.with_options(api_key="sk-wrong")), anthropic.AuthenticationError)
    assert isinstance(raised(demo, messages=[]), anthropic.BadRequestError)
    limited = raised_at_limit(demo.with_options(api_key="sk-limited-key"), raised)
    assert isinstance(limited, anthropic.RateLimitError) and limited.type == "rate_limit_error"
    assert limited.response.headers["retry-after"], limited
    assert raised(demo, messages=[{"role": "user", "content": "word " * 5000}]).status_code == 400


def raised_at_limit(client: anthropic.Anthropic, raised: Any) -> Any:
    """The first request of the minute is answered; which the second is not."""
    client.messages.create(**fields({"max_tokens": 1}))
    return raised(client, max_tokens=1)


def models_are_listed_in_anthropics_form() -> None:
    models = list(CLIENTS["demo"].models.list())
    assert len(models) == 1 and models[0].type == "model" and models[0].display_name, models
    assert models[0].created_at.year >= 2024, models
    one = CLIENTS["demo"].models.retrieve(models[0].id)
    assert one.id == models[0].id and one.created_at == models[0].created_at, one


def unknown_fields_are_named() -> None:
    status, headers, answer = SERVERS["tools"].request("POST", "/v1/messages", {
        "messages": QUESTION, "max_tokens": 1, "temprature": 1})
    assert status == 200, answer
    assert headers["x-tarn-ignored-fields"] == "temprature (did you mean temperature?)", headers


def fields_without_effect_change_no_token() -> None:
    plain = ask(temperature=0)
    more = ask(temperature=0, service_tier="auto", inference_geo="us", metadata={"user_id": "u"},
               speed="standard", extra_body={"diagnostics": {}})
    assert parts(more) == parts(plain) and more.usage.output_tokens == plain.usage.output_tokens


def a_client_that_leaves_ends_its_request() -> None:
    server = SERVERS["tools"]
    s = server.open_raw("/v1/messages", {"messages": QUESTION, "max_tokens": 700, "stream": True,
                                         "ignore_eos": True})
    assert s.recv(100)
    s.close()
    wait_until(lambda: server.blocks_in_use() == 0)


TESTS = [an_answer_is_that_of_a_chat, an_answer_says_why_it_ended,
         a_stream_is_the_same_message_in_events, a_last_message_of_the_assistant_is_continued,
         tokens_are_counted, a_document_is_a_document_of_the_prompt,
         cache_control_holds_the_prompt, thinking_is_a_matter_of_the_template,
         thoughts_are_a_block_of_their_own,
         a_tool_is_used_where_it_must_be, several_tools_may_be_used, a_result_can_be_sent_back,
         an_answer_has_the_form_that_was_asked_for, faults_are_400_and_named,
         every_refusal_has_anthropics_form, the_package_raises_its_errors,
         models_are_listed_in_anthropics_form, unknown_fields_are_named,
         fields_without_effect_change_no_token, a_client_that_leaves_ends_its_request]


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="tarn-messages-") as root:
        keys = Path(root) / "keys.json"
        keys.write_text(json.dumps({"keys": [
            {"name": "right", "key": "sk-right-key"},
            {"name": "limited", "key": "sk-limited-key", "requests_per_minute": 1}]}))
        keys.chmod(0o600)
        with (tarn_server(DEMO, "--api-key-file", str(keys), "--max-body-bytes",
                          "256K") as SERVERS["demo"],
              tarn_server(make_folder(root, "tools", TEMPLATE, "</think>"), "--max-model-len",
                          "1024") as SERVERS["tools"]):
            for name, server in SERVERS.items():
                CLIENTS[name] = anthropic.Anthropic(base_url=server.url, api_key="sk-right-key",
                                                    max_retries=0, timeout=TIMEOUT)
            return run_tests(TESTS)


if __name__ == "__main__":
    sys.exit(main())
