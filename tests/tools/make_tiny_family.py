#!/usr/bin/env python3
"""Make a random model of any family in Hugging Face layout, with or without a tokenizer.

    make_tiny_family.py DIR FAMILY [--seed 1] [--dtype f32] [--vocab 300] [--no-tokenizer]
                        [--set KEY=JSON ...]

FAMILY is a key of CONFIGS below, which has what the family's config.json adds to the common part;
--set changes single keys. The same arguments give the same bytes. Weights are scaled as those of
make_tiny_model.py.
"""
from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
import make_tiny_model  # noqa: E402
from hf_files import TORCH_NAMES, Tensors, save_weights, write_json  # noqa: E402

Config = dict[str, Any]
LOGIT_DEVIATION = 3.0

COMMON: Config = {
    "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False}
GEMMA: Config = {"head_dim": 16, "hidden_act": "gelu_pytorch_tanh",
                 "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True,
                 "sliding_window": 24, "query_pre_attn_scalar": 20, "attention_bias": False}
LONG_FACTORS = {"short_factor": [1.0, 1.1, 1.2, 1.5], "long_factor": [1.0, 2.0, 4.0, 8.0]}
CONFIGS: dict[str, Config] = {
    "llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama"},
    "mistral": {"architectures": ["MistralForCausalLM"], "model_type": "mistral",
                "sliding_window": 20},
    "qwen2": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2",
              "use_sliding_window": False, "sliding_window": 16, "max_window_layers": 1},
    "qwen2-window": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2",
                     "use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1,
                     "tie_word_embeddings": True},
    "qwen2-yarn": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2",
                   "use_sliding_window": False, "sliding_window": 16, "max_window_layers": 1,
                   "head_dim": 8,
                   "rope_scaling": {"type": "yarn", "rope_type": "yarn", "factor": 4.0,
                                    "original_max_position_embeddings": 32}},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 12,
              "attention_bias": False, "use_sliding_window": False, "max_window_layers": 2},
    "phi3": {"architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "sliding_window": 30,
             "pad_token_id": 0},
    "phi3-long": {"architectures": ["Phi3ForCausalLM"], "model_type": "phi3",
                  "sliding_window": None, "pad_token_id": 0, "max_position_embeddings": 128,
                  "original_max_position_embeddings": 64,
                  "rope_scaling": {"type": "longrope", **LONG_FACTORS}},
    "phi4-mini": {"architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "head_dim": 16,
                  "hidden_size": 64, "sliding_window": None, "pad_token_id": 0,
                  "partial_rotary_factor": 0.5, "max_position_embeddings": 128,
                  "original_max_position_embeddings": 100, "tie_word_embeddings": True,
                  "rope_scaling": {"type": "longrope", **LONG_FACTORS}},
    "gemma2": {"architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", **GEMMA,
               "attn_logit_softcapping": 8.0, "final_logit_softcapping": 6.0},
    "gemma3": {"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", **GEMMA,
               "num_hidden_layers": 3, "sliding_window_pattern": 3, "rope_theta": 50000.0,
               "rope_local_base_freq": 1000.0,
               "rope_scaling": {"rope_type": "linear", "factor": 4.0},
               "attn_logit_softcapping": None, "final_logit_softcapping": None},
    "smollm3": {"architectures": ["SmolLM3ForCausalLM"], "model_type": "smollm3",
                "num_hidden_layers": 3, "no_rope_layers": [1, 0, 1], "pad_token_id": 0,
                "use_sliding_window": False, "attention_bias": False,
                "tie_word_embeddings": True},
    "olmo2": {"architectures": ["Olmo2ForCausalLM"], "model_type": "olmo2", "pad_token_id": 0,
              "attention_bias": False},
    "granite": {"architectures": ["GraniteForCausalLM"], "model_type": "granite",
                "embedding_multiplier": 3.0, "attention_multiplier": 0.25,
                "residual_multiplier": 0.6, "logits_scaling": 2.0, "attention_bias": False,
                "mlp_bias": False, "tie_word_embeddings": True},
    "stablelm": {"architectures": ["StableLmForCausalLM"], "model_type": "stablelm",
                 "layer_norm_eps": 1e-5, "partial_rotary_factor": 0.25, "head_dim": 16,
                 "hidden_size": 64, "use_qkv_bias": True, "use_parallel_residual": False,
                 "qk_layernorm": False},
    "mixtral": {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral",
                "sliding_window": None, "intermediate_size": 12, "num_local_experts": 4,
                "num_experts_per_tok": 2},
    "qwen2-moe": {"architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe",
                  "use_sliding_window": False, "num_hidden_layers": 3, "num_experts": 5,
                  "num_experts_per_tok": 2, "moe_intermediate_size": 12,
                  "shared_expert_intermediate_size": 20, "norm_topk_prob": False,
                  "decoder_sparse_step": 2, "mlp_only_layers": []},
    "qwen3-moe": {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe",
                  "head_dim": 12, "attention_bias": False, "use_sliding_window": False,
                  "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 12,
                  "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [0]},
    "olmoe": {"architectures": ["OlmoeForCausalLM"], "model_type": "olmoe",
              "attention_bias": False, "clip_qkv": None, "intermediate_size": 12,
              "num_experts": 6, "num_experts_per_tok": 2, "norm_topk_prob": False},
    "bailing-moe": {"architectures": ["BailingMoeForCausalLM"], "model_type": "bailing_moe",
                    "num_hidden_layers": 3, "num_experts": 5, "num_experts_per_tok": 2,
                    "moe_intermediate_size": 12, "num_shared_experts": 2,
                    "norm_topk_prob": True, "first_k_dense_replace": 1, "use_bias": False,
                    "use_qkv_bias": True},
}
FUSED = {"phi3"}
NORMS = {"gemma2": ["input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
                    "post_feedforward_layernorm"],
         "olmo2": ["post_attention_layernorm", "post_feedforward_layernorm"]}
NORMS["gemma3_text"] = NORMS["gemma2"]
LLAMA_NORMS = ["input_layernorm", "post_attention_layernorm"]


def n_experts(c: Config) -> int:
    return int(c.get("num_local_experts", c.get("num_experts", 0)))


def has_experts(c: Config, layer: int) -> bool:
    is_sparse = (layer + 1) % c.get("decoder_sparse_step", 1) == 0
    return (n_experts(c) > 0 and is_sparse and layer not in c.get("mlp_only_layers", [])
            and layer >= c.get("first_k_dense_replace", 0))


def model_config(family: str, vocab: int, dtype: str) -> Config:
    return {**COMMON, "vocab_size": vocab, "torch_dtype": TORCH_NAMES[dtype], "bos_token_id": 0,
            "eos_token_id": 1, **CONFIGS[family]}


class Weights:
    """Fills `tensors` in the order of the layers."""

    def __init__(self, config: Config, seed: int) -> None:
        self.c = config
        self.kind = config["model_type"]
        self.rng = np.random.default_rng(seed)
        self.tensors: Tensors = {}
        self.dim = config["hidden_size"]
        self.heads, self.kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.head_dim = config.get("head_dim") or self.dim // self.heads

    def matrix(self, name: str, n: int, k: int, gain: float = 1.0, bias: bool = False) -> None:
        gain /= float(np.sqrt(k))
        self.tensors[name + ".weight"] = (
            self.rng.standard_normal((n, k), dtype=np.float32) * np.float32(gain))
        if bias:
            self.tensors[name + ".bias"] = 0.3 * self.rng.standard_normal(n, dtype=np.float32)

    def norm(self, name: str, n: int) -> None:
        w = np.exp(0.2 * self.rng.standard_normal(n, dtype=np.float32))
        self.tensors[name + ".weight"] = w - 1 if self.kind.startswith("gemma") else w
        if self.kind == "stablelm":
            self.tensors[name + ".bias"] = 0.1 * self.rng.standard_normal(n, dtype=np.float32)

    def attention(self, p: str) -> None:
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        bias = self.kind in ("qwen2", "qwen2_moe") or bool(self.c.get("use_qkv_bias"))
        both = bool(self.c.get("attention_bias") or self.c.get("use_bias"))
        if self.kind == "bailing_moe":
            self.matrix(p + "query_key_value", q + 2 * kv, self.dim, 1.4, bias or both)
            self.matrix(p + "dense", self.dim, q, 1.0, both)
            return
        if self.kind in FUSED:
            self.matrix(p + "qkv_proj", q + 2 * kv, self.dim, 1.4)
        else:
            for name, n in (("q_proj", q), ("k_proj", kv), ("v_proj", kv)):
                self.matrix(p + name, n, self.dim, 1.4, bias or both)
        if self.kind in ("qwen3", "qwen3_moe", "gemma3_text"):
            self.norm(p + "q_norm", self.head_dim)
            self.norm(p + "k_norm", self.head_dim)
        if self.kind in ("olmo2", "olmoe"):
            self.norm(p + "q_norm", q)
            self.norm(p + "k_norm", kv)
        self.matrix(p + "o_proj", self.dim, q, 1.0, both)

    def experts(self, p: str) -> None:
        """A router that decides clearly, experts, and what the family has beside them."""
        mixtral = self.kind == "mixtral"
        p = p.replace("mlp.", "block_sparse_moe.") if mixtral else p
        names = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
        ffn = self.c.get("moe_intermediate_size") or self.c["intermediate_size"]
        n = n_experts(self.c)
        self.matrix(p + "gate", n, self.dim, 3.0)
        for e in range(n):
            self.gated(p + f"experts.{e}.", ffn, names)
        if self.kind == "qwen2_moe":
            self.gated(p + "shared_expert.", self.c["shared_expert_intermediate_size"], names)
            self.matrix(p + "shared_expert_gate", 1, self.dim, 2.0)
        if self.c.get("num_shared_experts"):
            self.gated(p + "shared_experts.", ffn * self.c["num_shared_experts"], names)

    def gated(self, p: str, ffn: int, names: tuple[str, str, str]) -> None:
        self.matrix(p + names[0], ffn, self.dim, 1.5)
        self.matrix(p + names[1], ffn, self.dim, 1.5)
        self.matrix(p + names[2], self.dim, ffn, 1.0)

    def feed_forward(self, p: str, layer: int) -> None:
        if has_experts(self.c, layer):
            self.experts(p)
            return
        ffn, bias = self.c["intermediate_size"], bool(self.c.get("mlp_bias"))
        if self.kind in FUSED:
            self.matrix(p + "gate_up_proj", 2 * ffn, self.dim, 1.5)
        else:
            self.matrix(p + "gate_proj", ffn, self.dim, 1.5, bias)
            self.matrix(p + "up_proj", ffn, self.dim, 1.5, bias)
        self.matrix(p + "down_proj", self.dim, ffn, 0.7, bias)

    def make(self) -> Tensors:
        tied = self.c["tie_word_embeddings"]
        embed_gain = LOGIT_DEVIATION if tied else np.sqrt(self.dim)
        bailing = self.kind == "bailing_moe"
        self.matrix("model.word_embeddings" if bailing else "model.embed_tokens",
                    self.c["vocab_size"], self.dim, float(embed_gain))
        for i in range(self.c["num_hidden_layers"]):
            p = f"model.layers.{i}."
            self.attention(p + ("attention." if bailing else "self_attn."))
            self.feed_forward(p + "mlp.", i)
            for name in NORMS.get(self.kind, LLAMA_NORMS):
                self.norm(p + name, self.dim)
        self.norm("model.norm", self.dim)
        if not tied:
            self.matrix("lm_head", self.c["vocab_size"], self.dim, LOGIT_DEVIATION)
        return self.tensors


def make(out: Path, family: str, *, seed: int = 1, dtype: str = "f32", vocab: int = 300,
         with_tokenizer: bool = False, changes: Config | None = None) -> Config:
    """Write the directory; return its config.json."""
    config = {**model_config(family, vocab, dtype), **(changes or {})}
    out.mkdir(parents=True, exist_ok=True)
    if with_tokenizer:
        tokenizer, specials = make_tiny_model.tokenizer_json(vocab)
        config["bos_token_id"], config["eos_token_id"] = specials["<|bos|>"], specials["<|end|>"]
        make_tiny_model.write_tokenizer(out, tokenizer, config["max_position_embeddings"])
    save_weights(out, Weights(config, seed).make(), dtype)
    write_json(out / "config.json", config)
    return config


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("out", type=Path, metavar="DIR")
    p.add_argument("family", choices=sorted(CONFIGS))
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--dtype", choices=sorted(TORCH_NAMES), default="f32")
    p.add_argument("--vocab", type=int, default=300)
    p.add_argument("--no-tokenizer", action="store_true")
    p.add_argument("--set", action="append", default=[], metavar="KEY=JSON", dest="changes")
    a = p.parse_args()
    changes = {key: json.loads(value) for key, value in (c.split("=", 1) for c in a.changes)}
    make(a.out, a.family, seed=a.seed, dtype=a.dtype, vocab=a.vocab,
         with_tokenizer=not a.no_tokenizer, changes=changes)


if __name__ == "__main__":
    main()
