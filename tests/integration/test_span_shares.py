#!/usr/bin/env python3
"""Documents tokenized separately and as a whole, for each tokenizer family, on SQuAD's paragraphs.

A boundary after a newline should rarely split a token that the tokenizer would form across it. The
shares are printed; at most one boundary in a hundred may differ.
"""
from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "tests" / "tools"))
import tarn_test  # noqa: E402

DOCUMENTS = tarn_test.shared_data("rag-derived-squad2dev") / "documents.jsonl"
VOCABS = tarn_test.shared_data("tok-llamacpp-vocabs")
MOST_DIFFERENT = 0.01
FAMILIES = {
    "gpt-2": VOCABS / "ggml-vocab-gpt-2.gguf",
    "llama-spm": VOCABS / "ggml-vocab-llama-spm.gguf",
    "starcoder": VOCABS / "ggml-vocab-starcoder.gguf",
    "falcon": VOCABS / "ggml-vocab-falcon.gguf",
    "gpt-neox": VOCABS / "ggml-vocab-gpt-neox.gguf",
    "qwen2": tarn_test.shared_data("tok-qwen2") / "merges.txt",
    "mistral-v1": tarn_test.shared_data("tok-mistral") / "tokenizer.model.v1",
}


def convert(source: Path, target: str) -> None:
    tool = REPO / "tests" / "tools" / "gguf_vocab_to_hf.py"
    subprocess.run([sys.executable, str(tool), str(source), target], check=True,
                   stdout=subprocess.DEVNULL)


def shares(source: Path) -> tuple[int, int, int]:
    with tempfile.TemporaryDirectory() as folder:
        convert(source, folder)
        program = tarn_test.program("tarn-span-shares")
        out = subprocess.run([str(program), folder, str(DOCUMENTS)], check=True,
                             capture_output=True, text=True).stdout
    n, n_differ, n_more = map(int, out.split())
    return n, n_differ, n_more


def main() -> int:
    failed = 0
    for family, source in FAMILIES.items():
        n, n_differ, n_more = shares(source)
        verdict = "ok  " if n > 600 and n_differ <= MOST_DIFFERENT * n else "FAIL"
        failed += verdict == "FAIL"
        print(f"{verdict} {family:12} {n_differ} of {n} boundaries differ "
              f"({100 * n_differ / n:.2f} %), {n_more:+d} tokens apart")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
