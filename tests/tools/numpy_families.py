"""Independent forward passes of the families beside Llama in NumPy, float64.

A family is what its config.json says and what its class below changes. Like numpy_llama.py the
module shares no code with the C engine. `window_tokens` is the number of positions of the whole
context, for families whose rotary positions depend on it.
"""
from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from hf_files import Tensors, load_weights
from numpy_llama import llama3_frequencies, rmsnorm, softmax

Config = dict[str, Any]


def yarn_frequencies(freq: np.ndarray, s: Config, theta: float) -> np.ndarray:
    """Peng et al., "YaRN": pairs that turn often keep their frequency, slow ones are divided."""
    d, old_len = 2 * len(freq), s["original_max_position_embeddings"]

    def dim_of(n_turns: float) -> float:
        return d * math.log(old_len / (n_turns * 2 * math.pi)) / (2 * math.log(theta))

    low = max(math.floor(dim_of(s.get("beta_fast", 32))), 0)
    high = min(math.ceil(dim_of(s.get("beta_slow", 1))), d - 1)
    ramp = np.clip((np.arange(len(freq)) - low) / (high - low or 0.001), 0, 1)
    return freq / s["factor"] * ramp + freq * (1 - ramp)


class Decoder:
    """Llama's layer, and every variation that config.json alone decides."""

    plus_one = False    # weights of norms are stored less 1
    head_norm = ""      # "each" head by itself, or "all" together
    fused = False
    norm_names = ("input_layernorm", "", "post_attention_layernorm", "")
    attention_name, embedding_name = "self_attn.", "model.embed_tokens"

    def __init__(self, config: Config, weights: Tensors, n_context: int) -> None:
        self.c = config
        self.w = {name: w.astype(np.float64) for name, w in weights.items()}
        self.n_heads = config["num_attention_heads"]
        self.n_kv_heads = config["num_key_value_heads"]
        self.d = config.get("head_dim") or config["hidden_size"] // self.n_heads
        self.rot_dim = int(self.d * config.get("partial_rotary_factor", 1))
        self.n_context = n_context

    # What a family changes.
    def window(self, layer: int) -> int:
        return 0

    def has_positions(self, layer: int) -> bool:
        return True

    def theta_and_scaling(self, layer: int) -> tuple[float, Config]:
        return self.c["rope_theta"], self.c.get("rope_scaling") or {}

    def score_scale(self) -> float:
        return 1 / math.sqrt(self.d)

    def activation(self, x: np.ndarray) -> np.ndarray:
        return x / (1 + np.exp(-x))

    # The parts.
    def linear(self, x: np.ndarray, name: str) -> np.ndarray:
        return x @ self.w[name + ".weight"].T + self.w.get(name + ".bias", 0)

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        w = self.w[name + ".weight"] + (1 if self.plus_one else 0)
        return rmsnorm(x, w, self.c["rms_norm_eps"])

    def frequencies(self, layer: int) -> tuple[np.ndarray, float]:
        """Of the rotated pairs, and the factor of their cosines and sines."""
        theta, s = self.theta_and_scaling(layer)
        freq = theta ** (-np.arange(0, self.rot_dim, 2, dtype=np.float64) / self.rot_dim)
        kind = s.get("rope_type", s.get("type", "default"))
        if kind == "linear":
            return freq / s["factor"], 1
        if kind == "llama3":
            return llama3_frequencies(freq, s), 1
        if kind == "yarn":
            return yarn_frequencies(freq, s, theta), 0.1 * math.log(s["factor"]) + 1
        if kind == "longrope":
            old_len = self.c["original_max_position_embeddings"]
            growth = self.c["max_position_embeddings"] / old_len
            name = "long_factor" if self.n_context > old_len else "short_factor"
            magnitude = math.sqrt(1 + math.log(growth) / math.log(old_len)) if growth > 1 else 1
            return freq / np.array(s[name]), magnitude
        assert kind == "default", kind
        return freq, 1

    def rotate(self, x: np.ndarray, layer: int) -> np.ndarray:
        """x [T, heads, d] at positions 0..T-1."""
        if not self.has_positions(layer):
            return x
        freq, magnitude = self.frequencies(layer)
        angle = np.arange(x.shape[0], dtype=np.float64)[:, None] * freq
        cos, sin = (magnitude * f(angle)[:, None, :] for f in (np.cos, np.sin))
        a, b, rest = np.split(x, [self.rot_dim // 2, self.rot_dim], axis=-1)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin, rest], axis=-1)

    def attend(self, q: np.ndarray, k: np.ndarray, v: np.ndarray, layer: int) -> np.ndarray:
        n = q.shape[0]
        ahead = np.arange(n)[:, None] - np.arange(n)[None, :]  # of the query over the key
        window, cap = self.window(layer), self.c.get("attn_logit_softcapping")
        visible = (ahead >= 0) & (ahead < (window or n))
        out = np.empty_like(q)
        for h in range(self.n_heads):
            g = h // (self.n_heads // self.n_kv_heads)
            scores = q[:, h] @ k[:, g].T * self.score_scale()
            if cap:
                scores = cap * np.tanh(scores / cap)
            out[:, h] = softmax(np.where(visible, scores, -np.inf)) @ v[:, g]
        return out.reshape(n, -1)

    def head_normed(self, x: np.ndarray, name: str) -> np.ndarray:
        """x [T, heads * d]"""
        if self.head_norm == "each":
            return self.norm(x.reshape(len(x), -1, self.d), name).reshape(x.shape)
        return self.norm(x, name) if self.head_norm else x

    def attention(self, x: np.ndarray, p: str, layer: int) -> np.ndarray:
        sizes = [self.n_heads * self.d, self.n_kv_heads * self.d]
        if self.fused:
            q, k, v = np.split(self.linear(x, p + "qkv_proj"), np.cumsum(sizes), axis=-1)
        else:
            q, k, v = (self.linear(x, p + name) for name in ("q_proj", "k_proj", "v_proj"))
        q, k = self.head_normed(q, p + "q_norm"), self.head_normed(k, p + "k_norm")
        q, k, v = (y.reshape(len(y), -1, self.d) for y in (q, k, v))
        y = self.attend(self.rotate(q, layer), self.rotate(k, layer), v, layer)
        return self.linear(y, p + "o_proj")

    def feed_forward(self, x: np.ndarray, p: str, layer: int) -> np.ndarray:
        if self.fused:
            gate, up = np.split(self.linear(x, p + "gate_up_proj"), 2, axis=-1)
        else:
            gate, up = self.linear(x, p + "gate_proj"), self.linear(x, p + "up_proj")
        return self.linear(self.activation(gate) * up, p + "down_proj")

    def add(self, h: np.ndarray, part: Any, before: str, after: str) -> np.ndarray:
        y = part(self.norm(h, before) if before else h)
        y = self.norm(y, after) if after else y
        return h + self.c.get("residual_multiplier", 1) * y

    def embed_scale(self) -> float:
        return self.c.get("embedding_multiplier", 1)

    def logits(self, ids: list[int]) -> np.ndarray:
        h = self.w[self.embedding_name + ".weight"][np.asarray(ids)] * self.embed_scale()
        for i in range(self.c["num_hidden_layers"]):
            p = f"model.layers.{i}."
            names = [n and p + n for n in self.norm_names]
            h = self.add(h, lambda x: self.attention(x, p + self.attention_name, i), *names[:2])
            h = self.add(h, lambda x: self.feed_forward(x, p + "mlp.", i), *names[2:])
        h = self.norm(h, "model.norm")
        tied = self.c["tie_word_embeddings"]
        out = self.linear(h, self.embedding_name if tied else "lm_head")
        out = out / self.c.get("logits_scaling", 1)
        cap = self.c.get("final_logit_softcapping")
        return cap * np.tanh(out / cap) if cap else out


class Mistral(Decoder):
    def window(self, layer: int) -> int:
        return self.c["sliding_window"] or 0


class Qwen(Decoder):
    def window(self, layer: int) -> int:
        used = self.c["use_sliding_window"] and layer >= self.c["max_window_layers"]
        return self.c["sliding_window"] if used else 0


class Qwen3(Qwen):
    head_norm = "each"


class Phi3(Mistral):
    fused = True


class Gemma2(Decoder):
    plus_one = True
    norm_names = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
                  "post_feedforward_layernorm")

    def window(self, layer: int) -> int:
        return self.c["sliding_window"] if layer % 2 == 0 else 0

    def score_scale(self) -> float:
        return self.c["query_pre_attn_scalar"] ** -0.5

    def embed_scale(self) -> float:
        return math.sqrt(self.c["hidden_size"])

    def activation(self, x: np.ndarray) -> np.ndarray:
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))


class Gemma3(Gemma2):
    head_norm = "each"

    def window(self, layer: int) -> int:
        is_local = (layer + 1) % self.c["sliding_window_pattern"] != 0
        return self.c["sliding_window"] if is_local else 0

    def theta_and_scaling(self, layer: int) -> tuple[float, Config]:
        if self.window(layer):
            return self.c["rope_local_base_freq"], {}
        return super().theta_and_scaling(layer)


class SmolLM3(Decoder):
    def has_positions(self, layer: int) -> bool:
        return self.c["no_rope_layers"][layer] == 1


class Olmo2(Decoder):
    head_norm = "all"
    norm_names = ("", "post_attention_layernorm", "", "post_feedforward_layernorm")


class Granite(Decoder):
    def score_scale(self) -> float:
        return self.c["attention_multiplier"]


class StableLm(Decoder):
    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        x = x - x.mean(axis=-1, keepdims=True)
        y = rmsnorm(x, self.w[name + ".weight"], self.c["layer_norm_eps"])
        return y + self.w[name + ".bias"]


class Experts(Decoder):
    """A mixture of experts: every row by itself, expert after expert."""

    expert_names = ("gate_proj", "up_proj", "down_proj")
    router_name, experts_name = "mlp.gate", "mlp.experts"
    n_experts_key, expert_scale = "num_experts", 1.0

    def is_dense(self, layer: int) -> bool:
        return False

    def renormalizes(self) -> bool:
        return bool(self.c["norm_topk_prob"])

    def gated(self, x: np.ndarray, p: str) -> np.ndarray:
        gate, up, down = (p + name for name in self.expert_names)
        return self.linear(self.activation(self.linear(x, gate)) * self.linear(x, up), down)

    def shared(self, x: np.ndarray, p: str) -> np.ndarray | float:
        return 0

    def feed_forward(self, x: np.ndarray, p: str, layer: int) -> np.ndarray:
        if self.is_dense(layer):
            return super().feed_forward(x, p, layer)
        base = p.removesuffix("mlp.")
        logits = self.linear(x, base + self.router_name)
        assert logits.shape[1] == self.c[self.n_experts_key]
        chosen = np.argsort(-logits, axis=1, kind="stable")[:, :self.c["num_experts_per_tok"]]
        weights = np.take_along_axis(softmax(logits), chosen, axis=1)
        if self.renormalizes():
            weights /= weights.sum(axis=1, keepdims=True)
        out = np.zeros_like(x)
        for row, (experts, ws) in enumerate(zip(chosen, weights)):
            for e, w in zip(experts, ws):
                out[row] += w * self.gated(x[row], f"{base}{self.experts_name}.{e}.")
        return out * self.expert_scale + self.shared(x, p)


class Mixtral(Experts):
    expert_names = ("w1", "w3", "w2")
    router_name, experts_name = "block_sparse_moe.gate", "block_sparse_moe.experts"
    n_experts_key = "num_local_experts"

    def window(self, layer: int) -> int:
        return self.c["sliding_window"] or 0

    def renormalizes(self) -> bool:
        return True


class Qwen3Moe(Experts):
    head_norm = "each"

    def is_dense(self, layer: int) -> bool:
        return (layer in self.c["mlp_only_layers"]
                or (layer + 1) % self.c["decoder_sparse_step"] != 0)


class Qwen2Moe(Qwen3Moe):
    head_norm = ""

    def shared(self, x: np.ndarray, p: str) -> np.ndarray:
        gate = 1 / (1 + np.exp(-self.linear(x, p + "shared_expert_gate")))
        return gate * self.gated(x, p + "shared_expert.")


class Olmoe(Experts):
    head_norm = "all"


class BailingMoe(Experts):
    attention_name, embedding_name = "attention.", "model.word_embeddings"

    def __init__(self, config: Config, weights: Tensors, n_context: int) -> None:
        super().__init__(config, weights, n_context)
        self.expert_scale = config.get("routed_scaling_factor", 1.0)
        sizes = [self.n_heads * self.d, self.n_kv_heads * self.d]
        for i in range(config["num_hidden_layers"]):  # as Llama names them
            p = f"model.layers.{i}.attention."
            for kind in ("weight", "bias"):
                if p + "dense." + kind in self.w:
                    self.w[p + "o_proj." + kind] = self.w[p + "dense." + kind]
                fused = self.w.get(p + "query_key_value." + kind)
                if fused is not None:
                    for name, part in zip("qkv", np.split(fused, np.cumsum(sizes))):
                        self.w[f"{p}{name}_proj.{kind}"] = part

    def is_dense(self, layer: int) -> bool:
        return layer < self.c["first_k_dense_replace"]

    def shared(self, x: np.ndarray, p: str) -> np.ndarray | float:
        return self.gated(x, p + "shared_experts.") if self.c["num_shared_experts"] else 0


CLASSES: dict[str, type[Decoder]] = {
    "llama": Decoder, "mistral": Mistral, "qwen2": Qwen, "qwen3": Qwen3, "phi3": Phi3,
    "gemma2": Gemma2, "gemma3_text": Gemma3, "smollm3": SmolLM3, "olmo2": Olmo2,
    "granite": Granite, "stablelm": StableLm, "mixtral": Mixtral, "qwen2_moe": Qwen2Moe,
    "qwen3_moe": Qwen3Moe, "olmoe": Olmoe, "bailing_moe": BailingMoe}


def load(model_dir: Path, n_context: int) -> Decoder:
    config = json.loads((model_dir / "config.json").read_text())
    return CLASSES[config["model_type"]](config, load_weights(model_dir), n_context)
