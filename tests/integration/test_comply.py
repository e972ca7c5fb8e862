#!/usr/bin/env python3
"""llm-comply, other people's conformance tests of OpenAI's chats, of Open Responses and of
Anthropic's messages.

Left out are its tests of pictures, which Tarn does not read, of tools, which the demo model does
not know (test_tools.py, test_responses.py and test_messages.py have them), of OpenAI's own
compaction, and, of chats and responses, of an error where `model` is missing: that is the served
model. Skipped where the package cannot be had (venv_helpers.py).
"""
from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from http_helpers import TIMEOUT, Server, run_tests, tarn_server, tarn_test
from venv_helpers import use_venv

use_venv("llm_comply")

USUAL = ("basic-response", "system-prompt", "multi-turn", "streaming-response", "streaming-usage")
SERVER: Server


def run(form: str, tests: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import sys; from llm_comply.cli import main; sys.exit(main())",
         "-u", SERVER.url + "/v1", "-k", "x", "-m", "demo", "--format", form, "--json",
         "-f", ",".join(tests)], capture_output=True, text=True, timeout=TIMEOUT)
    assert done.stdout.strip(), done.stderr[-2000:]
    answer: Any = json.loads(done.stdout)
    results = answer["results"] if isinstance(answer, dict) else answer
    failed = [r for r in results if r.get("status") not in ("passed", "pass") or r.get("warnings")]
    assert len(results) == len(tests) and not failed and done.returncode == 0, (failed, results)


def chats_comply() -> None:
    run("openai-chat", ["chat-" + name for name in USUAL])


def responses_comply() -> None:
    run("open-responses", [*USUAL, "assistant-phase", "response-output-phase-schema"])


def messages_comply() -> None:
    run("anthropic", ["anth-" + name for name in (*USUAL, "error-handling")])


def main() -> int:
    global SERVER
    model = tarn_test.REPO / "deploy" / "demo-model"
    with tarn_server(model, "--served-model-name", "demo") as SERVER:
        return run_tests([chats_comply, responses_comply, messages_comply])


if __name__ == "__main__":
    sys.exit(main())
