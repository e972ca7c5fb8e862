#!/usr/bin/env python3
"""The official openai package talks to tarn-server: chat, streaming, completions, models, errors.

Skipped where the package cannot be had (venv_helpers.py).
"""
from __future__ import annotations

import sys
import tempfile

from http_helpers import TIMEOUT, Server, make_model, run_tests, tarn_server
from venv_helpers import use_venv

with tempfile.TemporaryDirectory() as folder:
    # The model maker needs NumPy, which the venv need not have: make the model with this Python.
    use_venv("openai", env=lambda: {"TARN_TEST_MODEL": str(make_model(folder))})
import openai  # noqa: E402

SERVER: Server
CLIENT: openai.OpenAI


def messages(text: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": "Be short."}, {"role": "user", "content": text}]


def chat_answers() -> None:
    answer = CLIENT.chat.completions.create(model="tiny", messages=messages("hi"), max_tokens=12,
                                            temperature=0)
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    details = answer.usage.prompt_tokens_details
    # Tarn's extension stands beside OpenAI's field: the types of the package keep unknown fields.
    assert details.cached_tokens == sum(details.cached_tokens_details.values()), details
    assert set(details.cached_tokens_details) == {"device", "host", "disk"}, details


def chat_streams() -> None:
    whole = CLIENT.chat.completions.create(model="tiny", messages=messages("hi"), max_tokens=20,
                                           temperature=0)
    stream = CLIENT.chat.completions.create(model="tiny", messages=messages("hi"), max_tokens=20,
                                            temperature=0, stream=True,
                                            stream_options={"include_usage": True})
    text, usage = "", None
    for chunk in stream:
        usage = chunk.usage or usage
        text += "".join(c.delta.content or "" for c in chunk.choices)
    assert text == whole.choices[0].message.content
    assert usage.completion_tokens == whole.usage.completion_tokens
    assert usage.prompt_tokens_details.cached_tokens_details["host"] == 0, usage


def an_answer_with_tool_calls_can_be_sent_back() -> None:
    """As agents do: the message of the last answer, with all the fields that the package knows."""
    from openai.types.chat import ChatCompletionMessage
    said = ChatCompletionMessage.model_validate({
        "role": "assistant", "content": None, "tool_calls": [
            {"id": "call_1", "type": "function",
             "function": {"name": "weather", "arguments": '{"city":"Paris"}'}}]})
    for message in (said, said.model_dump()):
        answer = CLIENT.chat.completions.create(
            model="tiny", max_tokens=1, reasoning_effort="low", store=False, service_tier="auto",
            metadata={"a": "b"}, messages=[*messages("Hot?"), message, {
                "role": "tool", "tool_call_id": "call_1", "content": "18 C"}])
        assert answer.service_tier == "default"
        assert answer.usage.completion_tokens_details.reasoning_tokens == 0


def logprobs_and_n_are_read() -> None:
    answer = CLIENT.chat.completions.create(model="tiny", messages=messages("hi"), max_tokens=4,
                                            n=3, logprobs=True, top_logprobs=2, seed=1,
                                            extra_body={"ignore_eos": True})
    assert len(answer.choices) == 3
    assert len(answer.choices[2].logprobs.content[3].top_logprobs) == 2


def vllms_fields_go_through_extra_body() -> None:
    """allowed_token_ids, bad_words, prompt_logprobs, truncate_prompt_tokens."""
    answer = CLIENT.completions.create(
        model="tiny", prompt="one two three four", max_tokens=8, temperature=1, seed=2,
        extra_body={"allowed_token_ids": [20, 21, 22], "bad_words": ["zq"], "prompt_logprobs": 1,
                    "truncate_prompt_tokens": 3, "return_token_ids": True})
    choice = answer.choices[0]
    assert set(choice.token_ids) <= {20, 21, 22} and len(choice.prompt_token_ids) == 3, choice
    assert choice.prompt_logprobs[0] is None, choice
    for token, row in list(zip(choice.prompt_token_ids, choice.prompt_logprobs))[1:]:
        assert row[str(token)]["logprob"] <= 0 and 1 <= len(row) <= 2, row
    try:
        CLIENT.chat.completions.create(model="tiny", messages=messages("hi"),
                                       extra_body={"allowed_token_ids": []})
    except openai.BadRequestError as e:
        assert e.param == "allowed_token_ids", e
    else:
        raise AssertionError("an empty list was taken")


def a_stream_can_be_left() -> None:
    stream = CLIENT.chat.completions.create(model="tiny", messages=messages("hi"),
                                            max_tokens=1500, stream=True,
                                            extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    SERVER.wait_blocks(lambda n: n == 0)


def completions_answer_and_stream() -> None:
    answer = CLIENT.completions.create(model="tiny", prompt=["a", "b"], max_tokens=5, temperature=0)
    assert len(answer.choices) == 2
    text = "".join(c.choices[0].text for c in CLIENT.completions.create(
        model="tiny", prompt="a", max_tokens=5, temperature=0, stream=True))
    assert text == answer.choices[0].text


def models_are_listed() -> None:
    assert [m.id for m in CLIENT.models.list()] == ["tiny"]
    assert CLIENT.models.retrieve("tiny").id == "tiny"


def errors_become_exceptions() -> None:
    for kind, call in (
            (openai.NotFoundError, lambda: CLIENT.chat.completions.create(
                model="none", messages=messages("x"))),
            (openai.BadRequestError, lambda: CLIENT.chat.completions.create(
                model="tiny", messages=messages("x"), temperature=-1)),
            (openai.BadRequestError, lambda: CLIENT.chat.completions.create(
                model="tiny", messages=messages("x"), response_format={"type": "json_schema"})),
            (openai.AuthenticationError, lambda: CLIENT.with_options(
                api_key="wrong").models.list())):
        try:
            call()
        except kind as error:
            assert isinstance(error.code, str), error
        else:
            raise AssertionError(f"no {kind.__name__}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        model = make_model(scratch)
        with tarn_server(model, "--served-model-name", "tiny",
                         env={"TARN_API_KEY": "sesame", "TARN_ADMIN_API_KEY": "boss"}) as SERVER:
            # /metrics needs the admin's key.
            plain = SERVER.request
            SERVER.request = lambda m, p, b=None, h=None: plain(  # type: ignore[method-assign]
                m, p, b, {"x-api-key": "boss", **(h or {})})
            CLIENT = openai.OpenAI(base_url=SERVER.url + "/v1", api_key="sesame", max_retries=0,
                                   timeout=TIMEOUT)
            sys.exit(run_tests([chat_answers, chat_streams,
                                an_answer_with_tool_calls_can_be_sent_back,
                                logprobs_and_n_are_read, vllms_fields_go_through_extra_body,
                                a_stream_can_be_left, completions_answer_and_stream,
                                models_are_listed, errors_become_exceptions]))
