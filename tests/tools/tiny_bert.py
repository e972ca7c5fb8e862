#!/usr/bin/env python3
"""Tiny random BERT and XLM-RoBERTa models with tokenizers, and their forward pass in NumPy.

    tiny_bert.py DIR bert|xlm-roberta [--seed 1] [--dtype f32]

writes a model in Hugging Face layout, with --labels one that classifies texts. The same arguments
give the same bytes. hidden() is written
from the papers (Devlin et al., "BERT"; Conneau et al., "Unsupervised cross-lingual representation
learning at scale") and shares no code with engine/model/family_bert.c.
"""
from __future__ import annotations

import argparse
import json
import math
import string
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
from hf_files import (TORCH_NAMES, Tensors, added_token, load_weights, save_weights,  # noqa: E402
                      write_json)

Config = dict[str, Any]
COMMON: Config = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "hidden_act": "gelu", "type_vocab_size": 2, "position_embedding_type": "absolute"}
CONFIGS: dict[str, Config] = {
    "bert": {"architectures": ["BertModel"], "model_type": "bert", "pad_token_id": 0,
             "max_position_embeddings": 48, "layer_norm_eps": 1e-12},
    "xlm-roberta": {"architectures": ["XLMRobertaModel"], "model_type": "xlm-roberta",
                    "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2,
                    "max_position_embeddings": 50, "layer_norm_eps": 1e-5, "type_vocab_size": 1},
}
# The two products of a model with labels.
HEADS = {"bert": ("bert.pooler.dense", "classifier"),
         "xlm-roberta": ("classifier.dense", "classifier.out_proj")}
WORDS = ["the", "tower", "of", "ship", "river", "house", "captain", "query", "passage"]


def template(begin: tuple[str, int], end: tuple[str, int], second_type: int) -> Config:
    """The tokens around one text and around two. RoBERTa, which has one type, has two tokens
    between the texts of a pair."""
    def special(name: str, type_id: int = 0) -> Config:
        return {"SpecialToken": {"id": name, "type_id": type_id}}
    single = [special(begin[0]), {"Sequence": {"id": "A", "type_id": 0}}, special(end[0])]
    between = [] if second_type else [special(end[0])]
    return {"type": "TemplateProcessing", "single": single,
            "pair": [*single, *between, {"Sequence": {"id": "B", "type_id": second_type}},
                     special(end[0], second_type)],
            "special_tokens": {name: {"id": name, "ids": [number], "tokens": [name]}
                               for name, number in (begin, end)}}


def wordpiece() -> tuple[Config, list[str]]:
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = string.ascii_lowercase + string.digits
    vocab = [*specials, *letters, *("##" + c for c in letters), *".,:?!'", *WORDS, "##s"]
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [added_token(i, name) for i, name in enumerate(specials)],
        "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
                       "strip_accents": None, "lowercase": True},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": template(("[CLS]", 2), ("[SEP]", 3), 1),
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                  "max_input_chars_per_word": 100,
                  "vocab": {token: i for i, token in enumerate(vocab)}}}, vocab


def unigram() -> tuple[Config, list[str]]:
    specials = ["<s>", "<pad>", "</s>", "<unk>"]
    letters = "\u2581" + string.ascii_letters + string.digits + ".,:?!'\u00e9"
    vocab = [*((name, 0.0) for name in specials), *(("\u2581" + w, -4.0) for w in WORDS),
             *((c, -8.0 - i / 64) for i, c in enumerate(letters))]
    space = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always",
             "split": True}
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [added_token(i, name) for i, name in enumerate(specials)],
        "normalizer": None, "pre_tokenizer": space,
        "post_processor": template(("<s>", 0), ("</s>", 2), 0), "decoder": space,
        "model": {"type": "Unigram", "unk_id": 3, "vocab": [list(v) for v in vocab],
                  "byte_fallback": False}}, [name for name, _ in vocab]


def make_weights(c: Config, seed: int) -> Tensors:
    rng = np.random.default_rng(seed)
    tensors: Tensors = {}
    dim, ffn = c["hidden_size"], c["intermediate_size"]

    def matrix(name: str, n: int, k: int, gain: float, bias: bool = True) -> None:
        w = rng.standard_normal((n, k), dtype=np.float32)
        tensors[name + ".weight"] = w * np.float32(gain / math.sqrt(k))
        if bias:
            tensors[name + ".bias"] = 0.3 * rng.standard_normal(n, dtype=np.float32)

    def norm(name: str) -> None:
        tensors[name + ".weight"] = np.exp(0.2 * rng.standard_normal(dim, dtype=np.float32))
        tensors[name + ".bias"] = 0.1 * rng.standard_normal(dim, dtype=np.float32)

    e = "embeddings."
    matrix(e + "word_embeddings", c["vocab_size"], dim, 6, bias=False)
    matrix(e + "position_embeddings", c["max_position_embeddings"], dim, 3, bias=False)
    if c["type_vocab_size"]:
        matrix(e + "token_type_embeddings", c["type_vocab_size"], dim, 3, bias=False)
    norm(e + "LayerNorm")
    for i in range(c["num_hidden_layers"]):
        p = f"encoder.layer.{i}."
        for name in ("query", "key", "value"):
            matrix(p + "attention.self." + name, dim, dim, 1.4)
        matrix(p + "attention.output.dense", dim, dim, 1)
        norm(p + "attention.output.LayerNorm")
        matrix(p + "intermediate.dense", ffn, dim, 1.5)
        matrix(p + "output.dense", dim, ffn, 1)
        norm(p + "output.LayerNorm")
    return tensors


def make_head(c: Config, kind: str, n_labels: int, seed: int) -> Tensors:
    rng = np.random.default_rng([seed, n_labels])
    dim = c["hidden_size"]
    tensors: Tensors = {}
    for name, n in zip(HEADS[kind], (dim, n_labels)):
        w = rng.standard_normal((n, dim), dtype=np.float32)
        tensors[name + ".weight"] = w * np.float32(2 / math.sqrt(dim))
        tensors[name + ".bias"] = 0.5 * rng.standard_normal(n, dtype=np.float32)
    return tensors


def make(out: Path, kind: str, *, seed: int = 1, dtype: str = "f32", prefix: str = "",
         labels: int = 0, changes: Config | None = None) -> Config:
    """Write the directory; return its config.json. `prefix` goes in front of all tensors but those
    of the head, which a model with labels has."""
    tokenizer, vocab = wordpiece() if kind == "bert" else unigram()
    config = {**COMMON, **CONFIGS[kind], "vocab_size": len(vocab),
              "torch_dtype": TORCH_NAMES[dtype], **(changes or {})}
    tensors = {prefix + n: t for n, t in make_weights(config, seed).items()}
    if labels:
        name = config["architectures"][0].removesuffix("Model") + "ForSequenceClassification"
        config = {**config, "architectures": [name],
                  "id2label": {str(i): f"LABEL_{i}" for i in range(labels)}, **(changes or {})}
        tensors.update(make_head(config, kind, labels, seed))
    out.mkdir(parents=True, exist_ok=True)
    save_weights(out, tensors, dtype)
    write_json(out / "config.json", config)
    (out / "tokenizer.json").write_text(
        json.dumps(tokenizer, ensure_ascii=False, indent=None) + "\n", encoding="utf-8")
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token"), vocab)) \
        if kind == "bert" else {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>",
                                "cls_token": "<s>", "sep_token": "</s>", "unk_token": "<unk>"}
    write_json(out / "tokenizer_config.json",
               {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 512, **names})
    return config


def gelu(x: np.ndarray, name: str) -> np.ndarray:
    if name == "gelu":
        return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))


def hidden(model: Path, ids: list[int], prefix: str = "",
           types: list[int] | None = None) -> np.ndarray:
    """The last hidden states [len(ids), dim] in float64."""
    c = json.loads((model / "config.json").read_text())
    t = {n.removeprefix(prefix): w.astype(np.float64) for n, w in load_weights(model).items()}
    n, heads = len(ids), c["num_attention_heads"]
    first = c["pad_token_id"] + 1 if c["model_type"] == "xlm-roberta" else 0

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        x = x - x.mean(axis=-1, keepdims=True)
        x /= np.sqrt((x ** 2).mean(axis=-1, keepdims=True) + c["layer_norm_eps"])
        return x * t[name + ".weight"] + t[name + ".bias"]

    def linear(x: np.ndarray, name: str) -> np.ndarray:
        return x @ t[name + ".weight"].T + t[name + ".bias"]

    def attention(x: np.ndarray, p: str) -> np.ndarray:
        q, k, v = (linear(x, p + name).reshape(n, heads, -1).transpose(1, 0, 2)
                   for name in ("query", "key", "value"))
        scores = q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[-1])
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        return (weights @ v).transpose(1, 0, 2).reshape(n, -1)

    x = t["embeddings.word_embeddings.weight"][ids]
    x = x + t["embeddings.position_embeddings.weight"][first:first + n]
    if c["type_vocab_size"]:
        x = x + t["embeddings.token_type_embeddings.weight"][types or [0] * n]
    x = norm(x, "embeddings.LayerNorm")
    for i in range(c["num_hidden_layers"]):
        p = f"encoder.layer.{i}."
        a = linear(attention(x, p + "attention.self."), p + "attention.output.dense")
        x = norm(x + a, p + "attention.output.LayerNorm")
        f = gelu(linear(x, p + "intermediate.dense"), c["hidden_act"])
        x = norm(x + linear(f, p + "output.dense"), p + "output.LayerNorm")
    return x


def logits(model: Path, ids: list[int], prefix: str = "",
           types: list[int] | None = None) -> np.ndarray:
    """The logits of the labels in float64."""
    kind = json.loads((model / "config.json").read_text())["model_type"]
    t = {n: w.astype(np.float64) for n, w in load_weights(model).items()}
    pooler, head = HEADS[kind]
    x = hidden(model, ids, prefix, types)[0]
    x = np.tanh(t[pooler + ".weight"] @ x + t[pooler + ".bias"])
    return t[head + ".weight"] @ x + t[head + ".bias"]


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("out", type=Path, metavar="DIR")
    p.add_argument("kind", choices=sorted(CONFIGS))
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--labels", type=int, default=0)
    p.add_argument("--dtype", choices=sorted(TORCH_NAMES), default="f32")
    a = p.parse_args()
    make(a.out, a.kind, seed=a.seed, dtype=a.dtype, labels=a.labels)


if __name__ == "__main__":
    main()
