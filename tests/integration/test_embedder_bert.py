#!/usr/bin/env python3
"""Embeddings of random BERT and XLM-RoBERTa models.

They equal those of the NumPy forward pass (tests/tools/tiny_bert.py) to 1e-4, have the same bits
for any number of threads, and hostile files are refused with words.
"""
from __future__ import annotations

import json
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "tests" / "tools"))
import tarn_test  # noqa: E402

tarn_test.need_numpy()
import numpy as np  # noqa: E402
import tiny_bert  # noqa: E402
from hf_files import load_weights, save_weights, write_json  # noqa: E402
from test_embedder import Embedding, MODES  # noqa: E402

SHORT = "the tower of Vomta: who is its captain?"
LONG = "the captain of the ship passes the old house by the river. " * 30
# More than one segment of 256 tokens; heads of 16, 20 and 64 elements.
WIDE = {"max_position_embeddings": 700, "hidden_size": 64}


def normalized(v: np.ndarray) -> np.ndarray:
    return v / np.linalg.norm(v)


class Bert(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.model = Path(self.folder.name) / "tiny-bert"

    def make(self, kind: str = "bert", seed: int = 1, prefix: str = "", **changes: Any) -> None:
        tiny_bert.make(self.model, kind, seed=seed, prefix=prefix, changes=changes)

    def pool(self, mode: str) -> None:
        (self.model / "1_Pooling").mkdir(exist_ok=True)
        write_json(self.model / "1_Pooling" / "config.json", {m: m == mode for m in MODES})

    def embed(self, text: str, *options: str) -> Embedding:
        e = Embedding(self.model, text, *options)
        self.assertEqual(e.status, 0, e.words)
        return e

    def check(self, text: str, *options: str, pick: str = "mean") -> Embedding:
        e = self.embed(text, *options)
        ids = e.ids if len(e.ids) == e.n_tokens else [*e.ids[:e.n_tokens - 1], e.ids[-1]]
        rows = tiny_bert.hidden(self.model, ids)
        want = normalized({"mean": rows.mean(axis=0), "first": rows[0], "last": rows[-1]}[pick])
        error = float(np.abs(e.vector - want).max() / np.abs(want).max())
        self.assertLess(error, 1e-4)
        return e

    def refused(self, words: str, *options: str) -> None:
        e = Embedding(self.model, "a", *options)
        self.assertEqual(e.status, 1, "the model was not refused")
        self.assertIn(words, e.words)

    def test_vectors_equal_those_of_numpy(self) -> None:
        for seed, (kind, changes) in enumerate((
                ("bert", {}), ("xlm-roberta", {}), ("bert", WIDE),
                ("bert", {**WIDE, "num_attention_heads": 1, "num_hidden_layers": 1}),
                ("xlm-roberta", {**WIDE, "hidden_size": 60, "num_attention_heads": 3}),
                ("bert", {**WIDE, "hidden_act": "gelu_new", "type_vocab_size": 0}))):
            self.make(kind, seed, **changes)
            self.check(SHORT)
            self.check(LONG)
            self.check("a", "--cpu-variant", "portable")

    def test_poolings_of_an_encoder(self) -> None:
        self.make()
        mean = self.check(SHORT).raw  # without a pooling file
        for mode, pick in (("pooling_mode_mean_tokens", "mean"),
                           ("pooling_mode_cls_token", "first"),
                           ("pooling_mode_lasttoken", "last")):
            self.pool(mode)
            raw = self.check(SHORT, pick=pick).raw
            self.assertEqual(raw == mean, pick == "mean")
        self.pool("pooling_mode_max_tokens")
        self.refused("pooling_mode_max_tokens is not supported")

    def test_threads_and_steps_change_no_bit(self) -> None:
        self.make(**WIDE)
        for dtype in ("f32", "bf16"):
            raw = self.embed(LONG, "--dtype", dtype).raw
            for options in (["--threads", "2"], ["--step", "1"], ["--threads", "3", "--step", "7"]):
                self.assertEqual(self.embed(LONG, "--dtype", dtype, *options).raw, raw, options)

    def test_a_text_is_cut_at_the_last_position(self) -> None:
        for kind in ("bert", "xlm-roberta"):
            self.make(kind)
            e = self.check(LONG)
            self.assertEqual(e.n_tokens, 48)
            self.assertEqual(self.check(LONG, "--max-tokens", "9").n_tokens, 9)
        self.refused("max_position_embeddings 48", "--max-tokens", "49")

    def test_names_of_tensors_may_have_a_prefix(self) -> None:
        for kind, prefix in (("bert", "bert."), ("xlm-roberta", "roberta.")):
            self.make(kind)
            raw = self.embed(SHORT).raw
            self.make(kind, prefix=prefix)
            config = json.loads((self.model / "config.json").read_text())
            name = config["architectures"][0].replace("Model", "ForMaskedLM")
            write_json(self.model / "config.json", {**config, "architectures": [name]})
            self.assertEqual(self.embed(SHORT).raw, raw)

    def test_quantized_or_rounded_it_points_the_same_way(self) -> None:
        self.make(hidden_size=64)
        want = self.embed(SHORT).vector
        for options, least in ((["--dtype", "bf16"], 0.999), (["--dtype", "f16"], 0.9999),
                               (["--quantization", "int8"], 0.99),
                               (["--quantization", "int4"], 0.9)):
            self.assertGreater(float(self.embed(SHORT, *options).vector @ want), least, options)

    def test_lower_case_is_the_tokenizers(self) -> None:
        self.make()
        write_json(self.model / "sentence_bert_config.json", {"do_lower_case": True})
        self.assertEqual(self.embed("A Tower").raw, self.embed("a tower").raw)
        self.make("xlm-roberta")
        self.refused("do_lower_case is not supported")

    def test_hostile_configs_are_refused_with_words(self) -> None:
        for kind, changes, words in (
                ("bert", {"hidden_act": "relu"}, "hidden_act relu is not supported"),
                ("bert", {"hidden_act": 3}, "hidden_act"),
                ("bert", {"position_embedding_type": "relative_key"}, "relative_key"),
                ("bert", {"is_decoder": True}, "is_decoder is not supported"),
                ("bert", {"num_attention_heads": 5}, "num_attention_heads 5"),
                ("bert", {"num_key_value_heads": 2}, "num_attention_heads 4"),
                ("bert", {"head_dim": 16}, "num_attention_heads 4"),
                ("bert", {"max_position_embeddings": 1 << 26}, "max_position_embeddings"),
                ("bert", {"max_position_embeddings": 0}, "max_position_embeddings"),
                ("bert", {"type_vocab_size": -1}, "type_vocab_size"),
                ("bert", {"type_vocab_size": 1 << 40}, "type_vocab_size"),
                ("bert", {"layer_norm_eps": -1}, "layer_norm_eps"),
                ("bert", {"hidden_size": 1 << 40}, "hidden_size"),
                ("bert", {"num_hidden_layers": 0}, "num_hidden_layers"),
                ("xlm-roberta", {"pad_token_id": 49}, "no position behind pad_token_id 49"),
                ("xlm-roberta", {"pad_token_id": -1}, "pad_token_id"),
                ("xlm-roberta", {"pad_token_id": 1 << 33}, "pad_token_id"),
                ("bert", {"architectures": ["BertForTokenClassification"]},
                 "the nearest is BertForSequenceClassification"),
                ("bert", {"architectures": ["BertForSequenceClassification"]},
                 "a model that classifies texts embeds none"),
                ("bert", {"architectures": ["ModernBertModel"]}, "ModernBertModel is not supp")):
            self.make(kind)
            config = json.loads((self.model / "config.json").read_text())
            write_json(self.model / "config.json", {**config, **changes})
            self.refused(words)

    def test_tensors_that_disagree_with_the_config_are_refused(self) -> None:
        self.make()
        config = json.loads((self.model / "config.json").read_text())
        for name, value in (("max_position_embeddings", 49), ("type_vocab_size", 3),
                            ("intermediate_size", 47), ("vocab_size", 50),
                            ("num_hidden_layers", 3)):
            write_json(self.model / "config.json", {**config, name: value})
            self.refused("tensor")
        write_json(self.model / "config.json", config)
        tensors = load_weights(self.model)
        for name in ("embeddings.LayerNorm.bias", "embeddings.position_embeddings.weight",
                     "encoder.layer.1.attention.self.key.bias"):
            save_weights(self.model, {n: t for n, t in tensors.items() if n != name}, "f32")
            self.refused(name)

    def test_weights_that_are_not_finite_give_no_vector(self) -> None:
        self.make()
        tensors = load_weights(self.model)
        positions = np.array(tensors["embeddings.position_embeddings.weight"])
        positions[1] = np.inf
        tensors["embeddings.position_embeddings.weight"] = positions
        save_weights(self.model, tensors, "f32")
        self.refused("no finite vector")


if __name__ == "__main__":
    unittest.main()
