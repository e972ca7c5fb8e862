#!/usr/bin/env python3
"""The examples of clients/examples against a server with the demo model: each answers its question
from the registered documents, and names the document that it used.

LangChain and LlamaIndex come from PyPI (venv_helpers.py); the two are skipped where they cannot be
had. OpenAI's package comes with them.
"""
from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from http_helpers import TIMEOUT, Server, run_tests, tarn_server, tarn_test
from venv_helpers import use_venv

use_venv("openai", "langchain_openai", "llama_index.llms.openai_like")

EXAMPLES = tarn_test.REPO / "clients" / "examples"
SERVER: Server


def run(*command: object) -> str:
    done = subprocess.run([*map(str, command), SERVER.url], capture_output=True, text=True,
                          timeout=TIMEOUT)
    assert done.returncode == 0, (command, done.stdout, done.stderr[-2000:])
    return done.stdout


def openai_sdk() -> None:
    out = run(sys.executable, EXAMPLES / "openai_rag.py").splitlines()
    assert out[0] == "Stamos.", out
    assert out[1].startswith("  Kumnordim: score ") and out[1].endswith("tokens cached"), out


def openai_sdk_is_short() -> None:
    assert len((EXAMPLES / "openai_rag.py").read_text().splitlines()) < 40


def frameworks() -> None:
    for name, captain, ship in (("langchain", "Tavish", "Mirandol"),
                                ("llamaindex", "Milos", "Selkandor")):
        out = run(sys.executable, EXAMPLES / f"{name}_rag.py").splitlines()
        assert out[0] == f"{captain}.", out
        assert f"  {ship}: {ship} is a ship. The captain of {ship} is {captain}." in out, out
        # The retriever's search computed the prompt up to the end of the documents.
        cached, of = out[-1].split(" prompt tokens")[0].strip().split(" of ")
        assert int(of) - int(cached) <= 32, out


def curl() -> None:
    out = run(EXAMPLES / "rag.sh")
    assert '"content":"Stamos."' in out and '"content":"Tavish."' in out, out


def c_library() -> None:
    out = run(tarn_test.program("tarn-rag-example")).splitlines()
    assert out[0] == "Tavish.", out
    assert any(line.startswith("  Mirandol: score ") for line in out[1:]), out


def main() -> int:
    global SERVER
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder) / "cache"
        with tarn_server(tarn_test.REPO / "deploy" / "demo-model", "--cache-dir", str(cache)) as s:
            SERVER = s
            return run_tests([openai_sdk, openai_sdk_is_short, frameworks, curl, c_library])


if __name__ == "__main__":
    sys.exit(main())
