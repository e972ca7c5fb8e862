#!/usr/bin/env python3
"""The calls that others' clients made to api.openai.com (shared data openai-recorded), sent here.

What OpenAI answered is answered, in the form of OpenAI's own schema, unless it needs pictures,
files or OpenAI's services, which are refused by name. The last line counts the distinct calls.
Skipped where jsonschema cannot be had (venv_helpers.py).
"""
from __future__ import annotations

import array
import base64
import collections
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from http_helpers import Server, make_model, run_tests, tarn_server, tarn_test
from venv_helpers import use_venv

use_venv("jsonschema", "yaml")
import openai_schema  # noqa: E402

RECORDED = tarn_test.shared_data("openai-recorded")
# Files, what limits an answer's length, and the schemas of answers and frames.
KINDS = {
    "chat_completions": ("max_completion_tokens", "CreateChatCompletionResponse",
                         "CreateChatCompletionStreamResponse"),
    "completions": ("max_tokens", "CreateCompletionResponse", "CreateCompletionResponse"),
    "embeddings": ("", "CreateEmbeddingResponse", ""),
    "responses": ("max_output_tokens", "Response", ""),
}
# Kinds of parts, and fields, that stand for what this server does not do.
NOT_HERE = ('"image_url"', '"file"', '"input_audio"', '"input_file"', '"input_image"',
            "moderation", "web_search_options")
TEMPLATE = (
    "{% if tools %}{{ tools | tojson }} <tool_call>{% endif %}{% for m in messages %}{{ m.role }}: "
    "{{ m.content }}{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}\n"
    "{% endfor %}")
N_TOKENS = 8
SERVER: Server


def calls(name: str) -> list[dict[str, Any]]:
    """The distinct ones that OpenAI answered."""
    found = {}
    for line in (RECORDED / f"{name}.jsonl").read_text().splitlines():
        call = json.loads(line)
        if call["status"] == 200:
            key = json.dumps([call["endpoint"], call["request"], call["response"]])
            found[key] = call
    return list(found.values())


def as_numbers(answer: dict[str, Any]) -> None:
    """Vectors in base64, which OpenAI's schema does not know."""
    for one in answer["data"]:
        if isinstance(one["embedding"], str):
            one["embedding"] = array.array("f", base64.b64decode(one["embedding"])).tolist()


def check(name: str, is_stream: bool, answer: Any) -> None:
    _, whole, frame = KINDS[name]
    if name == "embeddings":
        as_numbers(answer)
    if not is_stream:
        openai_schema.check(whole, answer)
        return
    for line in answer.splitlines():
        if line.startswith("data: ") and line != "data: [DONE]":
            event = json.loads(line[6:])
            if name == "completions":  # recorded frames have null there, which the schema forbids
                for choice in event["choices"]:
                    choice["finish_reason"] = choice["finish_reason"] or "stop"
            schema = frame or openai_schema.events()[event["type"]]
            openai_schema.check(schema, event)


def send_all(name: str) -> None:
    limit = KINDS[name][0]
    count: collections.Counter[str] = collections.Counter()
    for call in calls(name):
        body = {**call["request"], "model": ""}
        if limit:
            old = "max_tokens" if "max_tokens" in body else limit
            body[old] = min(body.get(old) or N_TOKENS, N_TOKENS)
        status, _, answer = SERVER.request(call["method"], call["endpoint"], body)
        if status == 200:
            check(name, bool(body.get("stream")), answer)
            count["answered"] += 1
            continue
        words = answer["error"]["message"]
        reason = next((word for word in NOT_HERE if word in words), "")
        assert status == 400 and reason, (call["request"], answer)
        count["refused: " + reason.strip('"')] += 1
    assert count["answered"] > 0.8 * sum(count.values()), count
    print(f"      {name}: {sum(count.values())} distinct calls: {dict(count)}")


def chats_are_answered() -> None:
    send_all("chat_completions")


def completions_are_answered() -> None:
    send_all("completions")


def embeddings_are_answered() -> None:
    send_all("embeddings")


def responses_are_answered() -> None:
    send_all("responses")


def main() -> int:
    global SERVER
    with tempfile.TemporaryDirectory(prefix="tarn-recorded-") as folder:
        template = Path(folder) / "template"
        template.write_text(TEMPLATE)
        model = make_model(folder, "--max-pos", "16384")
        (Path(folder) / "embedder").mkdir()
        embedder = make_model(str(Path(folder) / "embedder"), "--dim", "512", "--heads", "8")
        with tarn_server(model, "--chat-template", str(template), "--tool-call-parser", "hermes",
                         "--embedding-model", str(embedder)) as SERVER:
            return run_tests([chats_are_answered, completions_are_answered,
                              embeddings_are_answered, responses_are_answered])


if __name__ == "__main__":
    sys.exit(main())
