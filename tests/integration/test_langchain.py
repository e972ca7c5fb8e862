#!/usr/bin/env python3
"""LangChain's ChatOpenAI calls tools and gives structured output, by chats and by responses. Only
the form of the answers is looked at: the demo model, with a template that knows tools, never saw
a tool, and grammars make its answers.

Skipped where the packages cannot be had (venv_helpers.py).
"""
from __future__ import annotations

import sys
import tempfile
from typing import Any, Literal

from http_helpers import Server, run_tests, tarn_server
from test_tools import HERMES, make_folder
from venv_helpers import use_venv

use_venv("openai", "langchain_openai")
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage  # noqa: E402
from langchain_core.tools import tool  # noqa: E402
from langchain_openai import ChatOpenAI  # noqa: E402
from pydantic import BaseModel, Field  # noqa: E402

SERVER: Server


class Weather(BaseModel):
    """The weather of a town."""
    town: str = Field(max_length=8, description="its name")
    sky: Literal["clear", "grey"]
    is_cold: bool


@tool
def find_weather(unit: Literal["C", "F"], is_tomorrow: bool) -> str:
    """Find the weather."""
    return f"{unit} {is_tomorrow}"


def chat(**more: Any) -> ChatOpenAI:
    return ChatOpenAI(**{"base_url": SERVER.url + "/v1", "api_key": "none", "model": "demo",
                         "temperature": 0.8, "seed": 1, "max_tokens": 300, **more})


def by_each_api() -> list[ChatOpenAI]:
    return [chat(), chat(seed=None, use_responses_api=True)]


def bound_tools_are_called_and_their_results_read() -> None:
    for model in by_each_api():
        # Without a seed any number of calls may come, and the last one be cut at max_tokens.
        more = {} if model.seed is not None else {"parallel_tool_calls": False}
        bound = model.bind_tools([find_weather], tool_choice="any", **more)
        question = HumanMessage("How is the weather?")
        answer = bound.invoke([question])
        assert isinstance(answer, AIMessage) and not answer.invalid_tool_calls, answer
        assert len(answer.tool_calls) > 0, answer
        results = [find_weather.invoke(call) for call in answer.tool_calls]
        assert all(isinstance(r, ToolMessage) and r.content[0] in "CF" for r in results), results
        assert answer.usage_metadata["output_tokens"] > 0, answer
        after = model.bind_tools([find_weather]).invoke([question, answer, *results])
        before = answer.usage_metadata["input_tokens"]
        assert after.usage_metadata["input_tokens"] > before, (answer, after)


def a_stream_adds_up_to_the_calls() -> None:
    bound = chat().bind_tools([find_weather], tool_choice="find_weather")
    whole: Any = None
    for chunk in bound.stream("How is the weather?"):
        whole = chunk if whole is None else whole + chunk
    [call] = whole.tool_calls
    assert call["name"] == "find_weather" and set(call["args"]) == {"unit", "is_tomorrow"}, whole
    assert call["args"] == bound.invoke("How is the weather?").tool_calls[0]["args"], whole


def strict_tools_are_bound() -> None:
    answer = chat().bind_tools([find_weather], tool_choice="any", strict=True).invoke("Weather?")
    for call in answer.tool_calls:
        assert set(call["args"]) == {"unit", "is_tomorrow"}, answer
        assert call["args"]["unit"] in ("C", "F"), answer


def structured_output_is_of_its_class() -> None:
    for model in by_each_api():
        for method in ("json_schema", "function_calling"):
            made = model.with_structured_output(Weather, method=method, include_raw=True)
            answer = made.invoke("How is the weather in Vomta?")
            assert answer["parsing_error"] is None, (method, answer)
            assert isinstance(answer["parsed"], Weather), (method, answer)


def json_mode_gives_an_object() -> None:
    """Its keys are the model's own choice, so no class is asked for."""
    answer = chat(max_tokens=2000).with_structured_output(
        None, method="json_mode", include_raw=True).invoke("Say {} in JSON.")
    cut = answer["raw"].response_metadata["finish_reason"] == "length"
    assert isinstance(answer["parsed"], dict) or cut, answer
    assert answer["raw"].content.lstrip().startswith("{"), answer


def main() -> int:
    global SERVER
    with tempfile.TemporaryDirectory(prefix="tarn-langchain-") as folder:
        with tarn_server(make_folder(folder, "demo", HERMES), "--served-model-name",
                         "demo") as SERVER:
            return run_tests([
                bound_tools_are_called_and_their_results_read, a_stream_adds_up_to_the_calls,
                strict_tools_are_bound, structured_output_is_of_its_class,
                json_mode_gives_an_object])


if __name__ == "__main__":
    sys.exit(main())
