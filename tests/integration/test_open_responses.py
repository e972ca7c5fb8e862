#!/usr/bin/env python3
"""/v1/responses does what the compliance test of Open Responses asks for, judged by the schemas of
that specification: each answer is a ResponseResource, each event is one of its streaming events.

The specification comes with the package llm_comply; its own test, which needs Bun, is not run. Two
things differ from that test: a call is asked for by tool_choice, because the demo model never saw
a tool, and pictures, files and compaction are left out. Skipped where the package cannot be had.
"""
from __future__ import annotations

import functools
import json
import sys
import tempfile
from importlib import resources
from typing import Any

from http_helpers import Server, run_tests, tarn_server
from test_tools import HERMES, make_folder
from venv_helpers import use_venv

use_venv("llm_comply", "jsonschema", "openai")
import jsonschema  # noqa: E402

PATH = "/v1/responses"
SPECIFICATION = json.loads((resources.files("llm_comply") / "specs/openresponses.json").read_text())
TOOL = {"type": "function", "name": "get_weather", "description": "The weather of a town.",
        "parameters": {"type": "object", "properties": {"town": {"type": "string",
                                                                 "maxLength": 12}},
                       "required": ["town"], "additionalProperties": False}}
SERVER: Server


def said(role: str, text: str) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": text}


@functools.lru_cache(None)
def validator(name: str) -> Any:
    return jsonschema.Draft202012Validator({
        "$ref": f"#/components/schemas/{name}", "components": SPECIFICATION["components"]})


@functools.lru_cache(None)
def schema_of_event(kind: str) -> str:
    """The name of an item, by the value of `type`."""
    for name, schema in SPECIFICATION["components"]["schemas"].items():
        if name.endswith("StreamingEvent") and schema["properties"]["type"]["enum"] == [kind]:
            return name
    raise AssertionError(f"Open Responses has no event {kind}")


def check(name: str, value: Any) -> None:
    """The specification has only null as the schema of a format, which OpenAI's answers repeat."""
    format_ = value.get("text", {}).get("format", {}) if name == "ResponseResource" else {}
    if "schema" in format_:
        format_["schema"] = None
    for error in validator(name).iter_errors(value):
        raise AssertionError(f"{name}: {error.json_path}: {error.message[:400]}")


def ask(*items: dict[str, Any], **more: Any) -> dict[str, Any]:
    answer = SERVER.post(PATH, {"model": "demo", "input": list(items), **more})
    check("ResponseResource", answer)
    assert answer["output"] and answer["status"] == "completed", answer
    return answer


def stream(*items: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    status, headers, text = SERVER.request("POST", PATH, {
        "model": "demo", "input": list(items), "stream": True, **more})
    assert status == 200 and headers["content-type"].startswith("text/event-stream"), text
    events = []
    for block in text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line)
        if lines.get("data", "[DONE]") == "[DONE]":
            continue
        event = json.loads(lines["data"])
        assert lines["event"] == event["type"], block
        check(schema_of_event(event["type"]), event)
        events.append(event)
    assert events[-1]["type"] == "response.completed", events[-1]
    check("ResponseResource", events[-1]["response"])
    return events


def a_message_is_answered() -> None:
    answer = ask(said("user", "Say hello in exactly 3 words."), max_output_tokens=400)
    assert answer["output"][0]["type"] == "message", answer


def a_stream_has_events_of_the_specification() -> None:
    kinds = [e["type"] for e in stream(said("user", "Count from 1 to 5."), max_output_tokens=400)]
    for kind in ("response.created", "response.in_progress", "response.output_item.added",
                 "response.content_part.added", "response.output_text.delta",
                 "response.output_text.done", "response.content_part.done",
                 "response.output_item.done"):
        assert kind in kinds, (kind, kinds)


def a_system_message_is_read() -> None:
    ask(said("system", "You are a pirate."), said("user", "Say hello."))


def a_conversation_is_continued() -> None:
    """In the input, and by previous_response_id."""
    first = ask(said("user", "My name is Alice."), said("assistant", "Hello Alice!"),
                said("user", "What is my name?"))
    then = ask(said("user", "And now?"), previous_response_id=first["id"])
    assert then["previous_response_id"] == first["id"]


def a_tool_is_called() -> None:
    more = {"tools": [TOOL], "tool_choice": "required", "max_output_tokens": 400}
    answer = ask(said("user", "How is the weather in San Francisco?"), **more)
    call = next(item for item in answer["output"] if item["type"] == "function_call")
    assert call["name"] == "get_weather" and json.loads(call["arguments"]).keys() == {"town"}
    ask(said("user", "How is the weather?"), call,
        {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"},
        tools=[TOOL])
    events = stream(said("user", "How is the weather?"), **more)
    kinds = {e["type"] for e in events}
    assert {"response.function_call_arguments.delta",
            "response.function_call_arguments.done"} <= kinds, kinds
    for kind in ("response.output_item.added", "response.output_item.done"):
        assert any(e["type"] == kind and e["item"]["type"] == "function_call" for e in events)


def a_phase_of_a_message_is_taken() -> None:
    ask(said("user", "hi"), {**said("assistant", "well"), "phase": "commentary"},
        said("user", "so"))


def structured_output_and_logprobs_fit() -> None:
    answer = ask(said("user", "hi"), text={"format": {
        "type": "json_schema", "name": "n", "schema": {"type": "boolean"}}},
        include=["message.output_text.logprobs"], top_logprobs=2)
    assert answer["output"][0]["content"][0]["text"] in ("true", "false"), answer


def main() -> int:
    global SERVER
    with tempfile.TemporaryDirectory(prefix="tarn-open-responses-") as folder:
        with tarn_server(make_folder(folder, "demo", HERMES), "--served-model-name",
                         "demo") as SERVER:
            return run_tests([
                a_message_is_answered, a_stream_has_events_of_the_specification,
                a_system_message_is_read, a_conversation_is_continued, a_tool_is_called,
                a_phase_of_a_message_is_taken, structured_output_and_logprobs_fit])


if __name__ == "__main__":
    sys.exit(main())
