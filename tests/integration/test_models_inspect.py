#!/usr/bin/env python3
"""tarnctl models inspect: what a model is and needs, and every reason for which it is refused."""
from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from http_helpers import REPO, run_tests, tarn_test

DEMO = REPO / "deploy" / "demo-model"
LLAMA = {"architectures": ["LlamaForCausalLM"], "hidden_size": 8192, "num_hidden_layers": 80,
         "num_attention_heads": 64, "num_key_value_heads": 8, "intermediate_size": 28672,
         "vocab_size": 1536, "max_position_embeddings": 131072, "torch_dtype": "bfloat16",
         "rms_norm_eps": 1e-5, "tie_word_embeddings": False}


def inspect(model: object, *options: str, **more: str) -> tuple[int, str, str]:
    done = subprocess.run([str(tarn_test.program("tarnctl")), "models", "inspect", str(model),
                           *options], capture_output=True, text=True,
                          env={**os.environ, **more}, timeout=tarn_test.patience(60))
    return done.returncode, done.stdout, done.stderr


def report(model: object) -> dict[str, Any]:
    code, out, err = inspect(model, "--json")
    assert out, err
    found: dict[str, Any] = json.loads(out)
    assert code == (0 if found["loads"] else 1), (code, out)
    assert found["loads"] == (not found["reasons"])
    return found


def tensors_of(c: dict[str, Any]) -> dict[str, list[int]]:
    d, f, kv = c["hidden_size"], c["intermediate_size"], c["num_key_value_heads"]
    kv *= d // c["num_attention_heads"]
    out = {"model.embed_tokens.weight": [c["vocab_size"], d], "model.norm.weight": [d],
           "lm_head.weight": [c["vocab_size"], d]}
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}."
        out |= {f"{at}{name}.weight": shape for name, shape in (
            ("input_layernorm", [d]), ("post_attention_layernorm", [d]),
            ("self_attn.q_proj", [d, d]), ("self_attn.k_proj", [kv, d]),
            ("self_attn.v_proj", [kv, d]), ("self_attn.o_proj", [d, d]),
            ("mlp.gate_proj", [f, d]), ("mlp.up_proj", [f, d]), ("mlp.down_proj", [d, f]))}
    return out


def write_model(folder: Path, config: dict[str, Any], tensors: dict[str, list[int]],
                dtype: str = "BF16") -> None:
    """A model whose weights are holes of a sparse file: headers without bytes."""
    header, at = {}, 0
    for name, shape in tensors.items():
        size = 2
        for n in shape:
            size *= n
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        f.truncate(8 + len(text) + at)
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEMO / name, folder / name)


def a_small_model_is_described_and_fits() -> None:
    code, out, err = inspect(DEMO)
    assert code == 0 and not err, (code, err)
    for words in ("llama (LlamaForCausalLM)", "3.3 million", "BF16: 47 tensors", "2048 tokens",
                  "byte-level BPE, 1536 tokens", "chat template  yes", "can load this model"):
        assert words in out, (words, out)
    found = report(DEMO)
    size = (DEMO / "model.safetensors").stat().st_size
    assert found["file_bytes"] == size and found["files"] == 1
    assert found["parameters"] * 2 == found["stored"][0]["bytes"]
    assert found["heads"] == 8 and found["kv_heads"] == 4 and found["head_size"] == 32
    memory = {m["quantization"]: m for m in found["memory"]}
    assert memory["as stored"]["kv_bytes_per_token"] == 2 * 5 * 4 * 32 * 2
    assert memory["int4"]["weight_bytes"] < memory["int8"]["weight_bytes"] < size
    whole = memory["as stored"]["contexts"][-1]
    assert whole["tokens"] == 2048 and whole["fits"]
    assert whole["bytes"] == (memory["as stored"]["weight_bytes"] + 2048 * 2560 +
                              memory["as stored"]["buffer_bytes"])


def the_memory_is_that_of_a_server() -> None:
    want = report(DEMO)["memory"]
    for row, quantization in ((want[0], "none"), (want[2], "int8"), (want[3], "int4")):
        server = subprocess.Popen(
            [str(tarn_test.program("tarn-server")), "--model", str(DEMO), "--port", "0",
             "--no-profile-cost", "--log-format", "json", "--quantization", quantization],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert server.stdout
        ready = json.loads(server.stdout.readline())
        server.terminate()
        assert server.wait(tarn_test.patience(60)) == 0
        mapped = 1536 * 256 * 2 if quantization == "none" else 0  # the table in the mapped file
        assert ready["weight_bytes"] == row["weight_bytes"] - mapped, (ready, row)
        assert ready["params"] == report(DEMO)["parameters"], ready


def a_model_of_140_gb_is_read_by_its_headers() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_model(folder, LLAMA, tensors_of(LLAMA))
        assert (folder / "model.safetensors").stat().st_blocks * 512 < 1 << 20
        found = report(folder)
        assert found["loads"] and found["parameters"] > 68e9 and found["file_bytes"] > 136e9
        assert not found["memory"][0]["contexts"][-1]["fits"] or found["free_bytes"] > 180e9
        assert found["memory"][0]["kv_bytes_per_token"] == 2 * 80 * 8 * 128 * 2
        assert [c["tokens"] for c in found["memory"][0]["contexts"]] == [4096, 32768, 131072]
        _, out, _ = inspect(folder)
        assert "68.48 billion" in out and "!" in out, out


def all_reasons_are_told_at_once() -> None:
    config = LLAMA | {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
                      "num_key_value_heads": 2, "intermediate_size": 96}
    tensors = tensors_of(config)
    del tensors["model.layers.0.mlp.up_proj.weight"]
    tensors["model.layers.1.self_attn.o_proj.weight"] = [64, 32]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_model(folder, config, tensors)
        (folder / "tokenizer.json").write_text("{}")
        found = report(folder)
        text = "\n".join(found["reasons"])
        assert "no tensor model.layers.0.mlp.up_proj.weight" in text, text
        assert "model.layers.1.self_attn.o_proj.weight has another shape" in text, text
        assert "tokenizer.json" in text and len(found["reasons"]) == 3, text
        write_model(folder, config, tensors_of(config), dtype="I16")
        found = report(folder)
        assert found["more_reasons"] > 0 and "has dtype I16" in found["reasons"][0], found


def what_cannot_be_read_is_told_with_its_files() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(LLAMA | {"architectures": ["NewModel"]}))
        (folder / "pytorch_model.bin").write_bytes(b"pickle")
        found = report(folder)
        text = "\n".join(found["reasons"])
        assert "architecture NewModel is not supported" in text, text
        assert "convert them to safetensors" in text and "tokenizer.json" in text, text
        assert found["architecture"] == "NewModel" and "parameters" not in found
        code, out, _ = inspect(folder)
        assert code == 1 and "A server refuses this model:" in out
    code, out, err = inspect("/nowhere/at/all")
    assert code == 1 and not out and "there is no directory" in err


def quantized_and_gguf_models_name_their_codes() -> None:
    try:
        import make_gguf
        import make_tiny_family
        import quantize_checkpoint
    except ImportError:
        print("      no NumPy: without quantized models")
        return
    wide = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
    with tempfile.TemporaryDirectory() as name:
        source, gptq, gguf = (Path(name) / n for n in ("source", "gptq", "g/m-Q8_0.gguf"))
        gguf.parent.mkdir()
        make_tiny_family.make(source, "llama", seed=1, vocab=304, changes=wide)
        quantize_checkpoint.quantize(source, gptq, "gptq", plain=Path(name) / "plain", seed=1,
                                     head=False)
        found = report(gptq)
        assert found["quantized_by"] == "gptq", found
        assert {s["type"]: s["tensors"] for s in found["stored"]}["int4"] == 14, found
        assert "affine" in found["memory"][0]["type"], found
        make_gguf.make(source, gguf, kind="q8_0")
        for path in (gguf, gguf.parent):  # the directory has no config.json, and one GGUF file
            found = report(path)
            assert found["format"] == "gguf" and found["path"] == str(gguf), found
            assert found["files"] == 1 and found["file_bytes"] == gguf.stat().st_size
            assert any(s["type"].lower() == "q8_0" for s in found["stored"]), found
        # The name of the file alone says that it is one of several, in any directory.
        part = Path(name) / "g-00001-of-00002.d" / "m-00001-of-00001.gguf"
        part.parent.mkdir()
        gguf.rename(part)
        before = Path.cwd()
        try:
            os.chdir(part.parent)
            for path in (part, part.name):
                found = report(path)
                assert found["files"] == 1 and found["file_bytes"] > 0, (path, found)
        finally:
            os.chdir(before)


def mixtures_and_encoders_are_told_apart() -> None:
    try:
        import make_tiny_family
        import tiny_bert
    except ImportError:
        print("      no NumPy: without mixtures and encoders")
        return
    with tempfile.TemporaryDirectory() as name:
        mixture, encoder = Path(name) / "mixture", Path(name) / "encoder"
        make_tiny_family.make(mixture, "mixtral", seed=1, vocab=304)
        found = report(mixture)
        assert found["use"] == "text" and found["experts"] > found["chosen_experts"] > 0, found
        assert 0 < found["active_parameters"] < found["parameters"], found
        _, out, _ = inspect(mixture)
        assert "for each token" in out and "experts" in out, out
        tiny_bert.make(encoder, "bert", labels=3, prefix="bert.")
        found = report(encoder)
        assert found["loads"] and found["use"] == "classification" and found["labels"] == 3, found
        _, out, _ = inspect(encoder)
        assert "as its rerank model only" in out and "chat template" not in out, out
        tiny_bert.make(encoder, "bert")
        found = report(encoder)
        assert found["loads"] and found["use"] == "embeddings", found
        _, out, _ = inspect(encoder)
        assert "as its embedding model only" in out and "chat template" not in out, out


def a_name_in_the_cache_is_found() -> None:
    with tempfile.TemporaryDirectory() as name:
        repo = Path(name) / "hub" / "models--org--name"
        (repo / "snapshots").mkdir(parents=True)
        (repo / "refs").mkdir()
        (repo / "refs" / "main").write_text("0" * 40)
        (repo / "snapshots" / ("0" * 40)).symlink_to(DEMO)
        code, out, err = inspect("org/name", HF_HOME=name)
        assert code == 0 and out.startswith("org/name\n  path           "), (out, err)


TESTS = [
    a_small_model_is_described_and_fits,
    the_memory_is_that_of_a_server,
    a_model_of_140_gb_is_read_by_its_headers,
    all_reasons_are_told_at_once,
    what_cannot_be_read_is_told_with_its_files,
    quantized_and_gguf_models_name_their_codes,
    mixtures_and_encoders_are_told_apart,
    a_name_in_the_cache_is_found,
]


if __name__ == "__main__":
    sys.exit(run_tests([t for t in TESTS if not sys.argv[1:] or t.__name__ in sys.argv[1:]]))
