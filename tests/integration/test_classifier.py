#!/usr/bin/env python3
"""Models that classify texts and pairs of texts (engine/embedder.h, by the program tarn-embed).

Their logits equal those of transformers (tests/golden/rerank-*, classify-*) and of the NumPy
forward pass (tests/tools/tiny_bert.py), have the same bits for any number of threads, and hostile
files are refused with words.
"""
from __future__ import annotations

import json
import subprocess
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

GOLDEN = REPO / "tests" / "golden"
SHORT = "the tower of Vomta: who is its captain?"
OTHER = "The captain of the ship passes the old house by the river."
WIDE = {"max_position_embeddings": 700, "hidden_size": 64}


class Logits:
    """The program's answer for a text, or, with a second one, for a pair."""

    def __init__(self, model: Path, first: str, second: str | None, *options: str) -> None:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "first").write_text(first)
            (folder / "second").write_text(second or "")
            done = subprocess.run(
                [str(tarn_test.program("tarn-embed")), str(model), str(folder / "first"),
                 str(folder / "out"), "--classify",
                 "-" if second is None else str(folder / "second"), *options],
                capture_output=True, text=True, timeout=tarn_test.patience(300), check=False)
            self.status, self.words = done.returncode, done.stderr.strip()
            if self.status == 0:
                _, n, *ids = done.stdout.split()
                self.n_tokens, self.ids = int(n), [int(i) for i in ids]
                self.raw = (folder / "out").read_bytes()
                self.row = np.frombuffer(self.raw, dtype="<f4")


def types_of_pair(model: Path, ids: list[int]) -> list[int]:
    """BERT's types: 1 behind the first [SEP], which has id 3; RoBERTa has one type."""
    if json.loads((model / "config.json").read_text())["model_type"] != "bert":
        return [0] * len(ids)
    first = ids.index(3) + 1
    return [0] * first + [1] * (len(ids) - first)


class Classifier(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.model = Path(self.folder.name) / "tiny"

    def make(self, kind: str = "bert", seed: int = 1, labels: int = 1, **changes: Any) -> None:
        self.prefix = "bert." if kind == "bert" else "roberta."
        tiny_bert.make(self.model, kind, seed=seed, labels=labels, prefix=self.prefix,
                       changes=changes)

    def run_it(self, first: str, second: str | None, *options: str) -> Logits:
        e = Logits(self.model, first, second, *options)
        self.assertEqual(e.status, 0, e.words)
        return e

    def check(self, first: str, second: str | None, *options: str) -> Logits:
        e = self.run_it(first, second, *options)
        types = None if second is None else types_of_pair(self.model, e.ids)
        want = tiny_bert.logits(self.model, e.ids, self.prefix, types)
        self.assertEqual(len(e.row), len(want))
        self.assertLess(float(np.abs(e.row - want).max()), 1e-4 * float(np.abs(want).max() + 1))
        return e

    def refused(self, words: str, second: str | None = "b") -> None:
        e = Logits(self.model, "a", second)
        self.assertEqual(e.status, 1, "the model was not refused")
        self.assertIn(words, e.words)

    def test_logits_equal_those_of_transformers(self) -> None:
        folders = sorted(p.parent for p in GOLDEN.glob("*/texts.json")
                         if p.parent.name.startswith(("rerank-", "classify-")))
        self.assertEqual(len(folders), 3)
        for folder in folders:
            cases = json.loads((folder / "texts.json").read_text())
            # test_scores.py asks a server all others.
            n_pairs = 6 if folder.name == "classify-bert" else 1
            for case in [cases["texts"][-1], *cases["pairs"][-n_pairs:]]:
                e = Logits(folder, case.get("text", case.get("first")), case.get("second"))
                self.assertEqual(e.status, 0, e.words)
                self.assertEqual(e.n_tokens, case["n_tokens"], (folder.name, case))
                np.testing.assert_allclose(e.row, case["logits"], rtol=1e-4, atol=1e-5)

    def test_logits_equal_those_of_numpy(self) -> None:
        for seed, (kind, labels, changes) in enumerate((
                ("bert", 1, {}), ("bert", 5, WIDE), ("xlm-roberta", 1, WIDE),
                ("xlm-roberta", 3, {}), ("bert", 2, {"type_vocab_size": 0}))):
            self.make(kind, seed, labels, **changes)
            types = changes.get("type_vocab_size", 2)
            if types:
                self.check(SHORT, OTHER)
            self.check(SHORT, None, "--cpu-variant", "portable")

    def test_threads_types_and_steps_change_no_bit(self) -> None:
        self.make(**WIDE)
        long = OTHER * 12
        for dtype in ("f32", "bf16"):
            raw = self.run_it(SHORT, long, "--dtype", dtype).raw
            for options in (["--threads", "2"], ["--threads", "3", "--step", "7"]):
                self.assertEqual(self.run_it(SHORT, long, "--dtype", dtype, *options).raw, raw)

    def test_a_second_text_has_types_only_where_the_files_say_so(self) -> None:
        self.make()
        typed = self.run_it(SHORT, OTHER).row
        names = json.loads((self.model / "tokenizer_config.json").read_text())
        write_json(self.model / "tokenizer_config.json",
                   {**names, "model_input_names": ["input_ids", "attention_mask"]})
        plain = self.run_it(SHORT, OTHER)
        want = tiny_bert.logits(self.model, plain.ids, self.prefix)
        self.assertLess(float(np.abs(plain.row - want).max()), 1e-4)
        self.assertGreater(float(np.abs(plain.row - typed).max()), 1e-3)

    def test_a_tokenizer_without_a_template_of_pairs_takes_single_texts(self) -> None:
        self.make()
        path = self.model / "tokenizer.json"
        whole = json.loads(path.read_text())
        pair = whole["post_processor"]["pair"]
        swapped = [pair[3], pair[2], pair[1], pair[0]]
        for other in (None, [], swapped, pair[:3], [*pair, pair[1]], [{"what": 1}], 7,
                      [*pair[:4], {"SpecialToken": {"id": "no", "type_id": 1}}],
                      [*pair[:4], {"SpecialToken": {"id": "[SEP]", "type_id": 2}}],
                      [*pair[:4], {"SpecialToken": {"id": "[SEP]", "type_id": 0}}]):
            path.write_text(json.dumps({**whole, "post_processor": {
                **whole["post_processor"], "pair": other}}))
            self.refused("no template of two texts")
        self.check(SHORT, None)
        path.write_text(json.dumps({**whole, "post_processor": {
            "type": "BertProcessing", "cls": ["[CLS]", 2], "sep": ["[SEP]", 3]}}))
        self.assertEqual(self.check(SHORT, OTHER).ids.count(3), 2)
        path.write_text(json.dumps({**whole, "post_processor": {"type": "Sequence", "processors": [
            whole["post_processor"], whole["post_processor"]]}}))
        self.refused("no template of two texts")

    def test_the_processor_of_roberta_is_its_template(self) -> None:
        self.make("xlm-roberta")
        want = self.check(SHORT, OTHER)
        path = self.model / "tokenizer.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "post_processor": {
            "type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 0],
            "trim_offsets": True, "add_prefix_space": False}}))
        got = self.check(SHORT, OTHER)
        self.assertEqual((got.ids, got.raw), (want.ids, want.raw))
        self.assertEqual([i for i in got.ids if i in (0, 2)], [0, 2, 2, 2])

    def test_hostile_configs_are_refused_with_words(self) -> None:
        labels = {"id2label": None}
        for changes, words in (
                ({**labels, "num_labels": 0}, "num_labels"),
                ({**labels, "num_labels": 1 << 40}, "num_labels"),
                ({**labels, "num_labels": 4097}, "num_labels"),
                ({**labels, "num_labels": "1"}, "num_labels"),
                ({**labels, "num_labels": 7}, "classifier.weight"),
                (labels, "classifier.weight"),  # 2 labels by default
                ({"id2label": []}, "id2label"), ({"id2label": {}}, "id2label"),
                ({"id2label": {"0": 3}}, "id2label.0"),
                ({"id2label": {str(i): "x" for i in range(5000)}}, "id2label"),
                ({"problem_type": "ranking"}, "problem_type ranking"),
                ({"problem_type": 1}, "problem_type"),
                ({"sbert_ce_default_activation_function": "torch.nn.Tanh"}, "Tanh is not supp"),
                ({"sentence_transformers": {"activation_fn": "os.system"}}, "system is not supp"),
                ({"sentence_transformers": {"activation_fn": 1}}, "activation_fn"),
                ({"architectures": ["BertModel"]}, "has no labels"),
                ({"architectures": ["DebertaV2ForSequenceClassification"]}, "is not supported")):
            self.make()
            config = json.loads((self.model / "config.json").read_text())
            write_json(self.model / "config.json", {**config, **changes})
            self.refused(words)
        self.make()
        write_json(self.model / "config_sentence_transformers.json", {"activation_fn": "x.Tanh"})
        self.refused("config_sentence_transformers.json: activation_fn x.Tanh")

    def test_a_head_that_is_missing_or_of_another_shape_is_refused(self) -> None:
        for kind in ("bert", "xlm-roberta"):
            self.make(kind)
            tensors = load_weights(self.model)
            for part in tiny_bert.HEADS[kind]:
                weight, bias = part + ".weight", part + ".bias"
                for name, tensor in ((weight, None), (weight, tensors[weight][:, :-1]),
                                     (bias, np.zeros(9, np.float32))):
                    rest = {n: t for n, t in tensors.items() if n != name}
                    save_weights(self.model, rest if tensor is None else {**rest, name: tensor},
                                 "f32")
                    self.refused(name)

    def test_weights_that_are_not_finite_give_no_score(self) -> None:
        self.make()
        tensors = load_weights(self.model)
        tensors["classifier.bias"] = np.full(1, np.nan, np.float32)
        save_weights(self.model, tensors, "f32")
        self.refused("no finite score")


if __name__ == "__main__":
    unittest.main()
