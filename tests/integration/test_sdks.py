#!/usr/bin/env python3
"""Work of others' clients with several calls: the asynchronous classes of the openai and
anthropic packages, .parse, the helpers of streams, LlamaIndex's tools and structured answers,
LangChain's asynchronous ones. Only the form of answers is looked at: grammars make them.

Skipped where the packages cannot be had (venv_helpers.py).
"""
from __future__ import annotations

import asyncio
import sys
import tempfile
from typing import Any, Literal

from http_helpers import REPO, Server, run_tests, tarn_server
from test_tools import HERMES, make_folder
from venv_helpers import use_venv

use_venv("openai", "anthropic", "langchain_openai", "llama_index.llms.openai_like")
import anthropic  # noqa: E402
import openai  # noqa: E402
from langchain_openai import ChatOpenAI  # noqa: E402
from llama_index.core.llms import ChatMessage  # noqa: E402
from llama_index.core.tools import FunctionTool  # noqa: E402
from llama_index.llms.openai_like import OpenAILike  # noqa: E402
from pydantic import BaseModel, Field  # noqa: E402

HELLO: Any = [{"role": "user", "content": "How is the weather?"}]
SERVER: Server


class Weather(BaseModel):
    """The weather of a town."""
    sky: Literal["clear", "grey"]
    is_cold: bool
    town: str = Field(max_length=6)


def url() -> str:
    return SERVER.url + "/v1"


def client() -> Any:
    return openai.OpenAI(base_url=url(), api_key="x", max_retries=0)


def in_async(run: Any) -> None:
    async def inside() -> None:
        async with openai.AsyncOpenAI(base_url=url(), api_key="x", max_retries=0) as c:
            await run(c)
    asyncio.run(inside())


def chats_are_parsed() -> None:
    parsed = client().chat.completions.parse(model="demo", messages=HELLO, response_format=Weather)
    assert isinstance(parsed.choices[0].message.parsed, Weather), parsed
    tools = [openai.pydantic_function_tool(Weather)]
    called = client().chat.completions.parse(model="demo", messages=HELLO, tools=tools,
                                             tool_choice="required", parallel_tool_calls=False)
    calls = called.choices[0].message.tool_calls
    assert calls and isinstance(calls[0].function.parsed_arguments, Weather), called


def streams_are_parsed() -> None:
    with client().chat.completions.stream(model="demo", messages=HELLO,
                                          response_format=Weather) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds, kinds
    assert isinstance(final.choices[0].message.parsed, Weather), final


def asynchronous_chats_answer() -> None:
    async def run(c: Any) -> None:
        whole = await c.chat.completions.create(model="demo", messages=HELLO, max_tokens=8, seed=1)
        parts = []
        stream = await c.chat.completions.create(model="demo", messages=HELLO, max_tokens=8, seed=1,
                                                 stream=True)
        async for chunk in stream:
            parts += [choice.delta.content or "" for choice in chunk.choices]
        assert "".join(parts) == whole.choices[0].message.content, (parts, whole)
        parsed = await c.chat.completions.parse(model="demo", messages=HELLO,
                                                response_format=Weather)
        assert isinstance(parsed.choices[0].message.parsed, Weather), parsed
        async with c.chat.completions.stream(model="demo", messages=HELLO,
                                             response_format=Weather) as events:
            final = await events.get_final_completion()
        assert isinstance(final.choices[0].message.parsed, Weather), final
        raw = await c.chat.completions.with_raw_response.create(model="demo", messages=HELLO,
                                                                max_tokens=1)
        assert raw.headers["x-request-id"] and raw.parse().choices, raw.headers
    in_async(run)


def other_asynchronous_calls_answer() -> None:
    async def run(c: Any) -> None:
        text = await c.completions.create(model="demo", prompt="x", max_tokens=4)
        assert text.choices[0].text and text.usage.completion_tokens > 0, text
        n = 0
        async for chunk in await c.completions.create(model="demo", prompt="x", max_tokens=4,
                                                      stream=True):
            n += len(chunk.choices)
        assert n > 1
        vectors = await c.embeddings.create(model="embedder", input=["a", "b"])
        assert len(vectors.data) == 2, vectors
        assert [m.id async for m in c.models.list()][0] == "demo"
        try:
            await c.chat.completions.create(model="demo", messages=HELLO, temperature=-1)
        except openai.BadRequestError as error:
            assert error.param == "temperature", error
        else:
            raise AssertionError("no error")
        async with c.responses.stream(model="demo", input="hi", text_format=Weather) as events:
            async for _ in events:
                pass
            final = await events.get_final_response()
        assert isinstance(final.output_parsed, Weather), final
    in_async(run)


def asynchronous_messages_answer() -> None:
    async def run() -> None:
        async with anthropic.AsyncAnthropic(base_url=SERVER.url, api_key="x",
                                            max_retries=0) as c:
            whole = await c.messages.create(model="demo", max_tokens=8, messages=HELLO)
            assert whole.usage.output_tokens > 0, whole
            async with c.messages.stream(model="demo", max_tokens=8, messages=HELLO) as stream:
                parts = [text async for text in stream.text_stream]
                final = await stream.get_final_message()
            assert "".join(parts) == final.content[0].text, (parts, final)
            count = await c.messages.count_tokens(model="demo", messages=HELLO)
            assert count.input_tokens > 0, count
    asyncio.run(run())


def answer_about(is_grey: bool, is_cold: bool) -> str:
    """Say how the weather is."""
    return f"{is_grey} {is_cold}"


def llama() -> OpenAILike:
    return OpenAILike(model="demo", api_base=url(), api_key="x", is_chat_model=True,
                      is_function_calling_model=True, context_window=2048, max_tokens=400,
                      max_retries=0)


def llama_index_calls_tools() -> None:
    tool = FunctionTool.from_defaults(answer_about)
    answer = llama().chat_with_tools([tool], user_msg="How is the weather?", tool_required=True)
    calls = llama().get_tool_calls_from_response(answer)
    assert calls and calls[0].tool_name == "answer_about", answer
    assert {word in ("True", "False") for word in str(tool(**calls[0].tool_kwargs)).split()} == {
        True}, calls


def llama_index_gives_structure() -> None:
    model = llama()
    answer = model.as_structured_llm(Weather).chat([ChatMessage(role="user", content="Weather?")])
    assert isinstance(answer.raw, Weather), answer


def llama_index_streams() -> None:
    question = [ChatMessage(role="user", content="Weather?")]
    parts = [part.delta or "" for part in llama().stream_chat(question)]
    assert "".join(parts) == llama().chat(question).message.content
    assert asyncio.run(llama().achat(question)).message.content == "".join(parts)
    assert llama().complete("The ship").text


def lang_chain_is_asynchronous() -> None:
    async def run() -> None:
        chat = ChatOpenAI(model="demo", base_url=url(), api_key="x", max_retries=0,
                          temperature=0, max_tokens=400)
        found = await chat.with_structured_output(Weather, method="json_schema").ainvoke("Weather?")
        assert isinstance(found, Weather), found
        whole = await chat.ainvoke("Weather?")
        parts = [part.content async for part in chat.astream("Weather?")]
        assert "".join(parts) == whole.content, (parts, whole)
        called = await chat.bind_tools([answer_about], tool_choice="any").ainvoke("Weather?")
        assert called.tool_calls[0]["name"] == "answer_about", called
        objects = await ChatOpenAI(model="demo", base_url=url(), api_key="x", max_retries=0,
                                   use_responses_api=True).with_structured_output(
            Weather, method="json_schema").ainvoke("Weather?")
        assert isinstance(objects, Weather), objects
    asyncio.run(run())


def main() -> int:
    global SERVER
    with tempfile.TemporaryDirectory(prefix="tarn-sdks-") as folder:
        embedder = REPO / "tests" / "golden" / "embed-bert-mean"
        with tarn_server(make_folder(folder, "demo", HERMES), "--served-model-name", "demo",
                         "--embedding-model", str(embedder), "--served-embedding-model-name",
                         "embedder") as SERVER:
            return run_tests([
                chats_are_parsed, streams_are_parsed, asynchronous_chats_answer,
                other_asynchronous_calls_answer, asynchronous_messages_answer,
                llama_index_calls_tools, llama_index_gives_structure, llama_index_streams,
                lang_chain_is_asynchronous])


if __name__ == "__main__":
    sys.exit(main())
