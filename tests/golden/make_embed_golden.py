"""Write the golden vectors of embedding models, computed by sentence-transformers.

The program is run by hand, only to add or change a case; the tests read the committed files. The
cases were written with sentence-transformers 6.2.0, transformers 5.23.0 and torch 2.15.0 of PyPI:

    python3 -m venv /tmp/hf
    /tmp/hf/bin/pip install torch sentence-transformers
    /tmp/hf/bin/python tests/golden/make_embed_golden.py [CASE ...]

Each case is a folder: a random model with its tokenizer (tests/tools/tiny_bert.py; or the layout of
Qwen3-Embedding: last token, a prompt for queries, tensors without "model."), the files of
sentence-transformers, and texts.json, which has for each text its role, the number of its tokens
and its vector. Cases that exist are left alone unless they are named.
"""
from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tools"))
import make_tiny_family  # noqa: E402
import tiny_bert  # noqa: E402
from hf_files import load_weights, save_weights, write_json  # noqa: E402

TEXTS = ["The tower of Vomta", "ships, rivers and houses: who is the captain?", "a", "R\u00e9sum\u00e9!",
         "the river passes the house of the captain " * 6, "\u96ea 42 tarn's \u2603"]
# Kind, seed, pooling, prompts, max_seq_length.
CASES: dict[str, tuple[str, int, str, dict[str, str], int | None]] = {
    "embed-bert-cls": ("bert", 3, "cls_token", {}, None),
    "embed-bert-mean": ("bert", 4, "mean_tokens",
                        {"query": "query: ", "document": "passage: "}, 20),
    "embed-xlm-roberta": ("xlm-roberta", 5, "mean_tokens", {}, None),
    "embed-qwen3": ("qwen3", 6, "lasttoken",
                    {"query": "Instruct: Find what answers the query\nQuery:", "document": ""}, None),
}
MODES = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens",
         "lasttoken")


def write_files(out: Path, dim: int, pooling: str, prompts: dict[str, str],
                max_tokens: int | None) -> None:
    write_json(out / "modules.json", [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"}
        for i, (name, path) in enumerate([("Transformer", ""), ("Pooling", "1_Pooling"),
                                          ("Normalize", "2_Normalize")])])
    (out / "1_Pooling").mkdir(exist_ok=True)
    write_json(out / "1_Pooling" / "config.json",
               {"word_embedding_dimension": dim,
                **{f"pooling_mode_{mode}": mode == pooling for mode in MODES}})
    write_json(out / "config_sentence_transformers.json",
               {"prompts": prompts, "default_prompt_name": None})
    if max_tokens:
        write_json(out / "sentence_bert_config.json",
                   {"max_seq_length": max_tokens, "do_lower_case": False})


def make_qwen3(out: Path, seed: int) -> dict[str, Any]:
    config = make_tiny_family.make(out, "qwen3", seed=seed, vocab=280, with_tokenizer=True,
                                   changes={"tie_word_embeddings": True})
    save_weights(out, {n.removeprefix("model."): t for n, t in load_weights(out).items()}, "f32")
    tokenizer = json.loads((out / "tokenizer.json").read_text())
    end = next(t["id"] for t in tokenizer["added_tokens"] if t["content"] == "<|end|>")
    tokenizer["post_processor"] = {"type": "Sequence", "processors": [
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False,
         "use_regex": False},
        {"type": "TemplateProcessing",
         "single": [{"Sequence": {"id": "A", "type_id": 0}},
                    {"SpecialToken": {"id": "<|end|>", "type_id": 0}}],
         "pair": [{"Sequence": {"id": "A", "type_id": 0}},
                  {"SpecialToken": {"id": "<|end|>", "type_id": 0}},
                  {"Sequence": {"id": "B", "type_id": 0}},
                  {"SpecialToken": {"id": "<|end|>", "type_id": 0}}],
         "special_tokens": {"<|end|>": {"id": "<|end|>", "ids": [end], "tokens": ["<|end|>"]}}}]}
    (out / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False) + "\n")
    write_json(out / "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "padding_side": "left",
        "eos_token": "<|end|>", "pad_token": "<|end|>", "model_max_length": 2048})
    return config


def make_case(name: str) -> None:
    from sentence_transformers import SentenceTransformer
    kind, seed, pooling, prompts, max_tokens = CASES[name]
    out = HERE / name
    config = make_qwen3(out, seed) if kind == "qwen3" else tiny_bert.make(out, kind, seed=seed)
    write_files(out, config["hidden_size"], pooling, prompts, max_tokens)
    if not max_tokens:  # the length of the table, which the library does not know by itself
        max_tokens = 2048 if kind == "qwen3" else 48
    model = SentenceTransformer(str(out), device="cpu")
    model.max_seq_length = max_tokens
    cases: list[dict[str, Any]] = []
    for role in ("document", "query"):
        for text in TEXTS:
            whole = prompts.get(role, "") + text
            ids = model.tokenizer(whole, truncation=True, max_length=max_tokens)["input_ids"]
            encode = model.encode_query if role == "query" else model.encode_document
            vector = encode(text).astype(np.float64)
            cases.append({"role": role, "text": text, "n_tokens": len(ids),
                          "vector": [float(f"{x:.7g}") for x in vector]})
    (out / "texts.json").write_text(json.dumps(cases, indent=None) + "\n")
    print(f"{name}: {[c['n_tokens'] for c in cases]} tokens")


def main() -> None:
    new = [name for name in CASES if not (HERE / name / "texts.json").exists()]
    for name in sys.argv[1:] or new:
        make_case(name)


if __name__ == "__main__":
    main()
