#!/usr/bin/env python3
"""Calls of tools and thoughts in the formats of later models, through the whole server.

Models that say a script (tests/tools/scripted_model.py) write what gpt-oss, Kimi K2, MiniMax,
DeepSeek, Seed-OSS, GLM 4.7, LFM2 and Hunyuan write. Chats with and without streaming, responses and
messages give the same thoughts, text and calls.
"""
from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from http_helpers import Server, run_tests, tarn_server, tarn_test

tarn_test.need_numpy()
sys.path.insert(0, str(tarn_test.REPO / "tests" / "tools"))
import scripted_model  # noqa: E402

CHAT = "/v1/chat/completions"
FUNCTIONS = [
    {"name": "get_weather", "description": "The weather of a town.", "parameters": {
        "type": "object", "properties": {
            "town": {"type": "string", "maxLength": 12}, "days": {"type": "integer", "maximum": 9}},
        "required": ["town", "days"], "additionalProperties": False}},
    {"name": "clock", "parameters": {"type": "object", "properties": {}}}]
TOOLS = [{"type": "function", "function": f} for f in FUNCTIONS]
THOUGHTS = "The town is K\u00f6ln <so> ask."
TEXT = "Let me see."
WEATHER = ("get_weather", {"town": "K\u00f6ln", "days": 3})
CLOCK = ("clock", {})
ARGUMENTS = '{"town": "K\u00f6ln", "days": 3}'
THINK = f"<think>{THOUGHTS}</think>\n\n"
PLAIN = "It is 18 degrees < 20."


def dsml(word: str) -> str:
    bar = "\uff5cDSML\uff5c"
    return (f"\n\n<{bar}{word}>\n<{bar}invoke name=\"get_weather\">\n"
            f"<{bar}parameter name=\"town\" string=\"true\">K\u00f6ln</{bar}parameter>\n"
            f"<{bar}parameter name=\"days\" string=\"false\">3</{bar}parameter>\n</{bar}invoke>\n"
            f"<{bar}invoke name=\"clock\">\n</{bar}invoke>\n</{bar}{word}>")


class Format(NamedTuple):
    tools: str
    reasoning: str
    think: str  # "": the model does not think
    calls: str  # behind the text
    specials: list[str]
    ends: list[str] = []
    n_calls: int = 2


HARMONY = ["<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|constrain|>"]
ANALYSIS = f"<|channel|>analysis<|message|>{THOUGHTS}<|end|><|start|>assistant"
FORMATS = {
    "kimi_k2": Format(
        "kimi_k2", "kimi_k2", THINK,
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
        f"<|tool_call_argument_begin|>{ARGUMENTS}<|tool_call_end|><|tool_call_begin|>"
        "functions.clock:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
        "<|tool_calls_section_end|>",
        ["<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>",
         "<|tool_call_end|>", "<|tool_calls_section_end|>"]),
    "minimax": Format(
        "minimax", "qwen3", THINK,
        f'\n<tool_calls>\n{{"name": "get_weather", "arguments": {ARGUMENTS}}}\n'
        '{"name": "clock", "arguments": {}}\n</tool_calls>', ["<think>", "</think>"]),
    "minimax_m2": Format(
        "minimax_m2", "minimax_m2", THINK,
        '\n<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="town">K\u00f6ln'
        '</parameter>\n<parameter name="days">3</parameter>\n</invoke>\n<invoke name="clock">\n'
        '</invoke>\n</minimax:tool_call>',
        ["<minimax:tool_call>", "</minimax:tool_call>", "<think>", "</think>"]),
    "deepseek_v32": Format("deepseek_v32", "deepseek_v3", THINK, dsml("function_calls"),
                           ["<think>", "</think>"]),
    "deepseek_v4": Format("deepseek_v4", "deepseek_v3", THINK, dsml("tool_calls"),
                          ["<think>", "</think>"]),
    "seed_oss": Format(
        "seed_oss", "seed_oss", f"<seed:think>{THOUGHTS}</seed:think>",
        "\n<seed:tool_call>\n<function=get_weather>\n<parameter=town>K\u00f6ln</parameter>\n"
        "<parameter=days>3</parameter>\n</function>\n</seed:tool_call>\n<seed:tool_call>\n"
        "<function=clock>\n</function>\n</seed:tool_call>",
        ["<seed:think>", "</seed:think>", "<seed:tool_call>", "</seed:tool_call>"]),
    "glm47": Format(
        "glm47", "glm45", THINK,
        "<tool_call>get_weather<arg_key>town</arg_key><arg_value>K\u00f6ln</arg_value>"
        "<arg_key>days</arg_key><arg_value>3</arg_value></tool_call><tool_call>clock</tool_call>",
        ["<think>", "</think>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>",
         "<arg_value>", "</arg_value>"]),
    "lfm2": Format(
        "lfm2", "none", "",
        "<|tool_call_start|>[get_weather(town='K\u00f6ln', days=3), clock()]<|tool_call_end|>",
        ["<|tool_call_start|>", "<|tool_call_end|>"]),
    "hunyuan_a13b": Format(
        "hunyuan_a13b", "qwen3", THINK,
        f'\n<tool_calls>[{{"name": "get_weather", "arguments": {ARGUMENTS}}}, '
        '{"name": "clock", "arguments": {}}]</tool_calls>', ["<think>", "</think>"]),
    "gpt_oss": Format(
        "openai", "gpt_oss", ANALYSIS,
        "<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json"
        f"<|message|>{ARGUMENTS}<|call|>", HARMONY, ["<|return|>", "<|call|>"], 1),
}
SERVERS: dict[str, Server] = {}


def scripts(f: Format) -> dict[str, str]:
    """The answers to "calls", "text" and "alone": calls with no text in front."""
    if f.tools == "openai":
        say = "<|channel|>commentary<|message|>"
        return {"calls": f.think + say + TEXT + f.calls,
                "text": f"{f.think}<|channel|>final<|message|>{PLAIN}<|return|>",
                "alone": f.think + f.calls.removeprefix("<|end|><|start|>assistant")}
    return {"calls": f.think + TEXT + f.calls, "text": f.think + PLAIN,
            "alone": f.think + f.calls.lstrip("\n")}


def ask(name: str, script: str, **more: Any) -> Any:
    answer = SERVERS[name].post(CHAT, {
        "messages": [{"role": "user", "content": script}], "tools": TOOLS, "max_tokens": 600,
        "temperature": 0, **more})
    return answer["choices"][0]


def check(name: str, script: str, thoughts: str, text: str, calls: list[tuple[str, Any]]) -> None:
    f = FORMATS[name]
    assert thoughts == (THOUGHTS if f.think else ""), (name, script, thoughts)
    assert text == {"calls": TEXT, "text": PLAIN, "alone": ""}[script], (name, script, text)
    want = [] if script == "text" else [WEATHER, CLOCK][:f.n_calls]
    assert calls == want, (name, script, calls)


def parsed(calls: list[Any] | None) -> list[tuple[str, Any]]:
    return [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in calls or []]


def chats_have_thoughts_text_and_calls() -> None:
    for name, f in FORMATS.items():
        for script in ("calls", "text", "alone"):
            choice = ask(name, script)
            m = choice["message"]
            check(name, script, m.get("reasoning_content") or "", m["content"] or "",
                  parsed(m.get("tool_calls")))
            want = "stop" if script == "text" else "tool_calls"
            assert choice["finish_reason"] == want, (name, choice)
            if name == "kimi_k2" and script != "text":
                assert [c["id"] for c in m["tool_calls"]] == ["functions.get_weather:0",
                                                              "functions.clock:1"], m
            if f.think:
                assert m["reasoning"] == THOUGHTS, m


def streams_give_the_same() -> None:
    for name in FORMATS:
        for script in ("calls", "text", "alone"):
            events, _ = SERVERS[name].stream(CHAT, {
                "messages": [{"role": "user", "content": script}], "tools": TOOLS,
                "max_tokens": 600, "temperature": 0, "stream": True})
            thoughts, text = "", ""
            calls: list[dict[str, Any]] = []
            for event in events:
                for choice in event["choices"]:
                    delta = choice["delta"]
                    thoughts += delta.get("reasoning_content") or ""
                    text += delta.get("content") or ""
                    for c in delta.get("tool_calls") or []:
                        if c["index"] == len(calls):
                            assert c["id"] and c["function"]["name"], c
                            calls.append({"function": {**c["function"], "arguments": ""}})
                        calls[c["index"]]["function"]["arguments"] += \
                            c["function"].get("arguments") or ""
            check(name, script, thoughts, text, parsed(calls))


def responses_have_them_as_items() -> None:
    for name in FORMATS:
        for script in ("calls", "text"):
            answer = SERVERS[name].post("/v1/responses", {
                "input": script, "max_output_tokens": 600, "temperature": 0, "store": False,
                "tools": [{"type": "function", **f} for f in FUNCTIONS]})
            thoughts, text, calls = "", "", []
            for item in answer["output"]:
                if item["type"] == "reasoning":
                    thoughts += "".join(p["text"] for p in item["content"])
                elif item["type"] == "message":
                    text += "".join(p["text"] for p in item["content"])
                else:
                    calls.append((item["name"], json.loads(item["arguments"])))
            check(name, script, thoughts, text, calls)


def messages_have_them_as_blocks() -> None:
    for name in FORMATS:
        for script in ("calls", "text"):
            answer = SERVERS[name].post("/v1/messages", {
                "messages": [{"role": "user", "content": script}], "max_tokens": 600,
                "temperature": 0, "thinking": {"type": "enabled", "budget_tokens": 500},
                "tools": [{"name": f["name"], "input_schema": f["parameters"]}
                          for f in FUNCTIONS]})
            blocks = answer["content"]
            check(name, script, "".join(b["thinking"] for b in blocks if b["type"] == "thinking"),
                  "".join(b["text"] for b in blocks if b["type"] == "text"),
                  [(b["name"], b["input"]) for b in blocks if b["type"] == "tool_use"])
            want = "end_turn" if script == "text" else "tool_use"
            assert answer["stop_reason"] == want, (name, answer)


def a_named_function_is_bound_by_its_grammar() -> None:
    """The scripts say other text where a grammar allows nothing but the call."""
    for name in FORMATS:
        m = ask(name, "calls", tool_choice={"type": "function",
                                            "function": {"name": "get_weather"}})["message"]
        calls = parsed(m["tool_calls"])
        assert [c for c, _ in calls] == ["get_weather"] and not m["content"], (name, m)
        assert set(calls[0][1]) == {"town", "days"} and calls[0][1]["days"] <= 9, (name, m)


def without_tools_the_text_stays() -> None:
    """A request without tools has no calls, whatever the model writes."""
    for name, f in FORMATS.items():
        answer = SERVERS[name].post(CHAT, {
            "messages": [{"role": "user", "content": "calls"}], "max_tokens": 600,
            "temperature": 0})
        m = answer["choices"][0]["message"]
        assert not m.get("tool_calls") and TEXT in m["content"], (name, m)
        assert (m.get("reasoning_content") or "") == (THOUGHTS if f.think else ""), (name, m)


TESTS = [chats_have_thoughts_text_and_calls, streams_give_the_same, responses_have_them_as_items,
         messages_have_them_as_blocks, a_named_function_is_bound_by_its_grammar,
         without_tools_the_text_stays]


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="tarn-formats-") as root:
        try:
            for name, f in FORMATS.items():
                scripted_model.make(Path(root) / name, scripts(f), f.specials, f.ends)
                SERVERS[name] = tarn_server(
                    Path(root) / name, "--tool-call-parser", f.tools, "--reasoning-parser",
                    f.reasoning, "--documents-path", "none")
                SERVERS[name].__enter__()
            return run_tests(TESTS)
        finally:
            for server in SERVERS.values():
                server.__exit__()


if __name__ == "__main__":
    sys.exit(main())
