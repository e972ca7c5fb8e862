#!/usr/bin/env python3
"""A server with a GGUF file answers as one with the directory that the file was made from.

The file alone is enough: it has the tokenizer, the chat template and the tokens that end an answer.
"""
from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(REPO / "tests" / "tools"))
import tarn_test  # noqa: E402

tarn_test.need_numpy()
sys.path.insert(0, str(tarn_test.TOOLS))
import make_gguf  # noqa: E402

MODEL = tarn_test.REPO / "deploy" / "demo-model"
F32 = ["--dtype", "f32", "--kv-cache-dtype", "f32", "--threads", "1"]
SYSTEM = "Answer from the documents."
QUESTIONS = ["What is the capital of France?", "Hello!  \u00e9\u732b <|end|>\n<|assistant|> 12"]


def ask(url: str) -> list[Any]:
    """What a server answers, without names and times."""
    got: list[Any] = []
    for text in QUESTIONS:
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]
        for more in ({}, {"parse_special": True}):
            got.append(tarn_test.post(url + "/tokenize", {"messages": messages, **more})["tokens"])
        answer = tarn_test.post(url + "/v1/chat/completions", {
            "messages": messages, "max_tokens": 64, "temperature": 0, "return_token_ids": True})
        got.append((answer["choices"], answer["usage"]))
        tokens = tarn_test.post(url + "/tokenize", {"prompt": text})["tokens"]
        got += [tokens, tarn_test.post(url + "/detokenize", {"tokens": tokens})["prompt"]]
    return got


def ends_by_itself(got: list[Any]) -> bool:
    """So the token that ends an answer is known to both servers."""
    return any(item[0][0]["finish_reason"] == "stop" for item in got if isinstance(item, tuple))


def check_refused(path: Path) -> None:
    """The reason why a file has no tokenizer is the server's message."""
    data = path.read_bytes()
    assert data.count(b"gpt2") == 1
    path.write_bytes(data.replace(b"gpt2", b"rwkv"))
    done = subprocess.run([str(tarn_test.program("tarn-server")), "--model", str(path), "--port",
                           str(tarn_test.free_port())], capture_output=True, text=True,
                          timeout=tarn_test.patience(60))
    assert done.returncode != 0
    assert "tokenizer.ggml.model: \"rwkv\" is not supported" in done.stderr, done.stderr


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = make_gguf.make(MODEL, folder / "demo.gguf", kind="bf16")
        with tarn_test.server(MODEL, *F32) as url:
            want = ask(url)
        with tarn_test.server(path, *F32) as url:
            got = ask(url)
        for a, b in zip(want, got):
            assert a == b, f"the directory:\n{a}\nthe file:\n{b}"
        assert len(got) == len(want) and ends_by_itself(got), got
        check_refused(path)
    print("ok  the same tokens, texts and answers")


if __name__ == "__main__":
    main()
