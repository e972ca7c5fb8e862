#!/usr/bin/env python3
"""Embeddings (engine/embedder.h, by the program tarn-embed) of random Llama models.

They equal those of the NumPy forward pass to 1e-4 and have the same bits for any number of threads
and any size of the steps; broken files of a model are refused with words.
"""
from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "tests" / "tools"))
import tarn_test  # noqa: E402

tarn_test.need_numpy()
import numpy as np  # noqa: E402
import make_tiny_model  # noqa: E402
from hf_files import load_weights, save_weights, write_json  # noqa: E402
from numpy_llama import NumpyLlama  # noqa: E402

SENTENCE = "the server answers the question with the documents, and Stamos is the captain. "
TEXT = SENTENCE * 20  # more tokens than a segment of 256
MODES = ("pooling_mode_cls_token", "pooling_mode_mean_tokens", "pooling_mode_max_tokens",
         "pooling_mode_mean_sqrt_len_tokens", "pooling_mode_weightedmean_tokens",
         "pooling_mode_lasttoken")


def write_pooling(model: Path, *modes: str, **more: object) -> None:
    (model / "1_Pooling").mkdir(exist_ok=True)
    config = {"word_embedding_dimension": 64, **{m: m in modes for m in MODES}, **more}
    write_json(model / "1_Pooling" / "config.json", config)


def add_closing_token(model: Path) -> int:
    """Have the tokenizer's template put the end-of-sequence id behind each text."""
    path = model / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    end = next(t["id"] for t in tokenizer["added_tokens"] if t["content"] == "<|end|>")
    template = tokenizer["post_processor"]
    template["single"].append({"SpecialToken": {"id": "<|end|>", "type_id": 0}})
    template["special_tokens"]["<|end|>"] = {"id": "<|end|>", "ids": [end], "tokens": ["<|end|>"]}
    write_json(path, tokenizer)
    return end


def expected(model: Path, ids: list[int], mean: bool) -> np.ndarray:
    hidden = NumpyLlama.load(model).hidden(ids)
    v = hidden.mean(axis=0) if mean else hidden[-1]
    return v / np.linalg.norm(v)


class Embedding:
    def __init__(self, model: Path, text: str, *options: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            text_file, out = Path(folder) / "text", Path(folder) / "out"
            text_file.write_text(text)
            done = subprocess.run([str(tarn_test.program("tarn-embed")), str(model),
                                   str(text_file), str(out), *options],
                                  capture_output=True, text=True, timeout=tarn_test.patience(300))
            self.status, self.words = done.returncode, done.stderr.strip()
            if self.status == 0:
                name, n, *ids = done.stdout.split()
                self.name, self.n_tokens, self.ids = name, int(n), [int(i) for i in ids]
                self.raw = out.read_bytes()
                self.vector = np.frombuffer(self.raw, dtype="<f4")


class Embedder(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.model = Path(self.folder.name) / "tiny-embedder"
        self.make()

    def make(self, *options: str) -> None:
        make_tiny_model.make(make_tiny_model.parser().parse_args(
            [str(self.model), "--kv-heads", "2", *options]))

    def embed(self, text: str = TEXT, *options: str) -> Embedding:
        e = Embedding(self.model, text, *options)
        self.assertEqual(e.status, 0, e.words)
        return e

    def near(self, got: np.ndarray, want: np.ndarray, bound: float = 1e-4) -> None:
        self.assertEqual(got.shape, want.shape)
        self.assertLess(float(np.abs(got - want).max()), bound)

    def refused(self, words: str, *options: str, text: str = "a") -> None:
        e = Embedding(self.model, text, *options)
        self.assertEqual(e.status, 1)
        self.assertIn(words, e.words)

    def test_the_last_token_counts_without_a_pooling_file(self) -> None:
        e = self.embed()
        self.assertEqual(e.name, "tiny-embedder")
        self.assertGreater(len(e.ids), 300)
        self.assertEqual(e.n_tokens, len(e.ids))
        self.near(e.vector, expected(self.model, e.ids, mean=False))
        self.assertAlmostEqual(float(np.linalg.norm(e.vector)), 1, places=5)

    def test_mean_pooling_is_the_mean_of_all_positions(self) -> None:
        write_pooling(self.model, "pooling_mode_mean_tokens")
        e = self.embed()
        self.near(e.vector, expected(self.model, e.ids, mean=True))

    def test_last_pooling_is_read_from_the_file(self) -> None:
        write_pooling(self.model, "pooling_mode_lasttoken")
        write_json(self.model / "modules.json", [
            {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{t}"}
            for i, (t, path) in enumerate([("Transformer", ""), ("Pooling", "1_Pooling"),
                                           ("Normalize", "2_Normalize")])])
        e = self.embed()
        self.near(e.vector, expected(self.model, e.ids, mean=False))

    def test_pooling_is_read_from_files_of_sentence_transformers_6(self) -> None:
        file = self.model / "1_Pooling" / "config.json"
        for new, old in (("mean", "pooling_mode_mean_tokens"),
                         ("lasttoken", "pooling_mode_lasttoken")):
            write_pooling(self.model, old)
            raw = self.embed().raw
            write_json(file, {"embedding_dimension": 64, "pooling_mode": new,
                              "include_prompt": True})
            self.assertEqual(self.embed().raw, raw)
        for value, words in (("cls", "pooling_mode_cls_token is not supported for a decoder"),
                             ("max", "pooling_mode_max_tokens is not supported"),
                             ("none", "this pooling_mode is not supported"),
                             (["mean", "cls"], "pooling_mode"), (3, "pooling_mode")):
            write_json(file, {"pooling_mode": value})
            self.refused(words)
        write_json(file, {"pooling_mode": "mean", "embedding_dimension": 65})
        self.refused("embedding_dimension")

    def test_threads_and_steps_change_no_bit(self) -> None:
        for mode in ("pooling_mode_lasttoken", "pooling_mode_mean_tokens"):
            write_pooling(self.model, mode)
            raw = self.embed().raw
            for options in (["--threads", "2"], ["--step", "1"], ["--step", "7"],
                            ["--step", "100", "--threads", "2"], ["--step", "100000"]):
                self.assertEqual(self.embed(TEXT, *options).raw, raw, (mode, options))

    def test_a_checkpoint_without_output_layer_loads(self) -> None:
        for options in ([], ["--tied"]):
            self.make(*options)
            want = self.embed()
            tensors = {name.removeprefix("model."): t
                       for name, t in load_weights(self.model).items() if name != "lm_head.weight"}
            save_weights(self.model, tensors, "f32")
            config = json.loads((self.model / "config.json").read_text())
            write_json(self.model / "config.json", {**config, "architectures": ["MistralModel"]})
            self.assertEqual(self.embed().raw, want.raw)

    def test_a_quantized_or_rounded_model_points_the_same_way(self) -> None:
        write_pooling(self.model, "pooling_mode_mean_tokens")
        want = self.embed().vector
        for options, least in ((["--dtype", "bf16"], 0.99), (["--quantization", "int8"], 0.98)):
            self.assertGreater(float(self.embed(TEXT, *options).vector @ want), least)

    def test_a_long_text_is_cut_in_front_of_the_closing_token(self) -> None:
        end = add_closing_token(self.model)
        whole = self.embed()
        self.assertEqual(whole.ids[-1], end)
        self.near(whole.vector, expected(self.model, whole.ids, mean=False))
        cut = self.embed(TEXT, "--max-tokens", "50")
        self.assertEqual(cut.n_tokens, 50)
        self.near(cut.vector, expected(self.model, [*whole.ids[:49], end], mean=False))

    def test_special_tokens_in_a_text_are_plain_text(self) -> None:
        self.assertGreater(self.embed("<|end|>").n_tokens, 3)

    def test_prompts_of_the_model_are_put_in_front(self) -> None:
        prompts = {"query": "Instruct: find it\nQuery:", "passage": "", "other": "x"}
        file = self.model / "config_sentence_transformers.json"
        write_json(file, {"prompts": prompts, "default_prompt_name": None})
        plain = Embedding(self.model, "Instruct: find it\nQuery:who?").raw
        self.assertEqual(self.embed("who?", "--role", "query").raw, plain)
        who = self.embed("who?").raw
        self.assertNotEqual(who, plain)
        write_json(file, {"prompts": {"query": "", "it": "Instruct: find it\nQuery:"},
                          "default_prompt_name": "it"})
        self.assertEqual(self.embed("who?").raw, plain)
        self.assertEqual(self.embed("who?", "--role", "query").raw, who)
        write_json(file, {"prompts": {"document": "d", "passage": "p"}})
        self.assertEqual(self.embed("ho?").raw, self.embed("dho?", "--role", "query").raw)

    def test_prompts_that_cannot_be_followed_are_refused(self) -> None:
        file = self.model / "config_sentence_transformers.json"
        for value, words in (([], "expected an object"), ({"prompts": []}, "expected an object"),
                             ({"prompts": {"query": 1}}, "a prompt"),
                             ({"prompts": {"query": "a\0b"}}, "a prompt"),
                             ({"default_prompt_name": "none"}, "no prompt of this name"),
                             ({"default_prompt_name": 1}, "default_prompt_name")):
            write_json(file, value)
            self.refused(words)
        write_json(file, {"prompts": {"query": "find: "}})
        write_pooling(self.model, "pooling_mode_mean_tokens", include_prompt=False)
        self.refused("include_prompt false is not supported")

    def test_the_longest_text_of_the_model_is_kept(self) -> None:
        file = self.model / "sentence_bert_config.json"
        write_json(file, {"max_seq_length": 30, "do_lower_case": False})
        self.assertEqual(self.embed().n_tokens, 30)
        write_json(file, {"max_seq_length": 100000})
        self.assertGreater(self.embed().n_tokens, 300)
        tokenizer = self.model / "tokenizer_config.json"
        whole = json.loads(tokenizer.read_text())
        write_json(file, {"max_seq_length": None})
        for length, n in ((40, 40), (10 ** 30, None), (0, None)):
            write_json(tokenizer, {**whole, "model_max_length": length})
            self.assertEqual(self.embed().n_tokens, n or self.embed().n_tokens)
            self.assertGreater(self.embed().n_tokens, 300 if n is None else 39)
        for value, words in ((0, "max_seq_length"), ("x", "max_seq_length")):
            write_json(file, {"max_seq_length": value})
            self.refused(words)
        write_json(file, {"do_lower_case": True})
        self.refused("do_lower_case is not supported")

    def test_pooling_files_that_cannot_be_followed_are_refused(self) -> None:
        write_pooling(self.model, "pooling_mode_cls_token")
        self.refused("pooling_mode_cls_token is not supported for a decoder")
        write_pooling(self.model)
        self.refused("0 pooling modes are on")
        write_pooling(self.model, "pooling_mode_mean_tokens", "pooling_mode_lasttoken")
        self.refused("2 pooling modes are on")
        write_pooling(self.model, "pooling_mode_lasttoken", word_embedding_dimension=32)
        self.refused("word_embedding_dimension")
        write_pooling(self.model, pooling_mode_lasttoken="yes")
        self.refused("pooling_mode_lasttoken")
        file = self.model / "1_Pooling" / "config.json"
        for text, words in (("[]", "expected an object"), ("{", "1_Pooling/config.json"),
                            ("[" * 5000, "1_Pooling/config.json"), ("", "1_Pooling/config.json"),
                            (" " * (1 << 17), "1_Pooling/config.json")):
            file.write_text(text)
            self.refused(words)

    def test_a_module_that_would_be_left_out_is_refused(self) -> None:
        file = self.model / "modules.json"
        write_json(file, [{"type": "sentence_transformers.models.Dense"}])
        self.refused("module sentence_transformers.models.Dense is not supported")
        for name, path in (("Transformer", "0_Transformer"), ("Pooling", "2_Pooling")):
            write_json(file, [{"type": f"sentence_transformers.models.{name}", "path": path}])
            self.refused(f'path "{path}" of {name} is not supported')
        for value, words in (({}, "expected an array"), ([{"type": 1}], "modules.json: type"),
                             ([{"type": "a.Pooling", "path": 1}], "path"),
                             (["x"], "modules.json: type")):
            write_json(file, value)
            self.refused(words)

    def test_broken_models_and_options_are_refused_with_words(self) -> None:
        self.refused("{embedding_model}: {dtype} f8 is unknown", "--dtype", "f8")
        self.refused("max_position_embeddings 2048", "--max-tokens", "4096")
        self.refused("a text of 16777217 bytes is too long", text="a" * (16 * 1024 * 1024 + 1))
        config = self.model / "config.json"
        whole = config.read_text()
        config.write_text(whole.replace("LlamaForCausalLM", "NomicBertModel"))
        self.refused("architecture NomicBertModel is not supported")
        config.write_text(whole)
        (self.model / "tokenizer.json").unlink()
        self.refused("tokenizer.json")
        config.unlink()
        self.refused("config.json")

    def test_weights_that_are_not_finite_give_no_vector(self) -> None:
        tensors = load_weights(self.model)
        tensors["model.norm.weight"] = np.full(64, np.nan, dtype=np.float32)
        save_weights(self.model, tensors, "f32")
        self.refused("no finite vector")


if __name__ == "__main__":
    unittest.main()
