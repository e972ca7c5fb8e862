"""Code of training, export and evaluation: the tokenizer, the prompt format and the model.

The tokenizer is read from tokenizer.json with the standard library only, so that the scripts run
with Debian's python3-torch and numpy. The model is the Llama architecture with Hugging Face's
tensor names.
"""
import json
import math
import os
import re

import torch
import torch.nn as nn
import torch.nn.functional as F

from generate_data import SYSTEM_DEFAULT

HERE = os.path.dirname(os.path.abspath(__file__))
SPECIAL = ["<|pad|>", "<|bos|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|doc|>"]

# GPT-2's pattern in the syntax of Python's re: [^\W\d_] is \p{L}, \d is \p{N} (except letter-like
# numbers).
PRETOKEN = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?[^\W\d_]+| ?\d+| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+")


def byte_alphabet():
    """GPT-2's map from bytes to printable characters, in which vocab and merges are written."""
    plain = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    table, extra = {}, 0
    for b in range(256):
        if b in plain:
            table[b] = chr(b)
        else:
            table[b] = chr(256 + extra)
            extra += 1
    return table


class Tokenizer:
    def __init__(self, path=os.path.join(HERE, "tokenizer.json")):
        with open(path, encoding="utf-8") as f:
            data = json.load(f)
        self.vocab = dict(data["model"]["vocab"])
        self.special = {t["content"]: t["id"] for t in data["added_tokens"]}
        merges = [tuple(m.split(" ")) if isinstance(m, str) else tuple(m)
                  for m in data["model"]["merges"]]
        self.rank = {m: i for i, m in enumerate(merges)}
        self.size = max(max(self.vocab.values()), max(self.special.values())) + 1
        self.bytes = byte_alphabet()
        self.unbyte = {c: b for b, c in self.bytes.items()}
        self.text = {i: t for t, i in self.vocab.items()}
        self.cache = {}
        self.split = re.compile("(" + "|".join(re.escape(s) for s in self.special) + ")")

    def word(self, word):
        ids = self.cache.get(word)
        if ids is not None:
            return ids
        parts = [self.bytes[b] for b in word.encode("utf-8")]
        while len(parts) > 1:
            best, at = None, -1
            for i in range(len(parts) - 1):
                rank = self.rank.get((parts[i], parts[i + 1]))
                if rank is not None and (best is None or rank < best):
                    best, at = rank, i
            if best is None:
                break
            parts[at:at + 2] = [parts[at] + parts[at + 1]]
        ids = [self.vocab[p] for p in parts]
        if len(self.cache) > 200000:
            self.cache.clear()
        self.cache[word] = ids
        return ids

    def plain(self, text):
        """Ids of text in which special tokens are plain text."""
        ids = []
        for word in PRETOKEN.findall(text):
            ids += self.word(word)
        return ids

    def encode(self, text):
        """Ids of a rendered prompt, special tokens recognized."""
        ids = []
        for part in self.split.split(text):
            if part in self.special:
                ids.append(self.special[part])
            elif part:
                ids += self.plain(part)
        return ids

    def decode(self, ids):
        names = {i: s for s, i in self.special.items()}
        out = bytearray()
        for i in ids:
            if i in names:
                out += names[i].encode()
            else:
                out += bytes(self.unbyte[c] for c in self.text[i])
        return out.decode("utf-8", errors="replace")


def prompt_spans(system, documents):
    """The texts that the server tokenizes separately: the preamble and each document; the chat
    follows."""
    spans = ["<|bos|><|system|>\n" + (SYSTEM_DEFAULT if system is None else system) + "\n"]
    spans += ["<|doc|>" + d["title"] + "\n" + d["text"] + "\n" for d in documents]
    return spans


def encode_prompt(tok, system, documents):
    s = tok.special
    system = SYSTEM_DEFAULT if system is None else system
    ids = [s["<|bos|>"], s["<|system|>"]] + tok.plain("\n" + system + "\n")
    for d in documents:
        ids.append(s["<|doc|>"])
        ids += tok.plain(d["title"] + "\n" + d["text"] + "\n")
    return ids + [s["<|end|>"]] + tok.plain("\n")


def encode_question(tok, question):
    s = tok.special
    return ([s["<|user|>"]] + tok.plain("\n" + question) + [s["<|end|>"]] + tok.plain("\n")
            + [s["<|assistant|>"]] + tok.plain("\n"))


def find(ids, piece, begin, end):
    """Position of the last `piece` within ids[begin:end], or -1."""
    for i in range(end - len(piece), begin - 1, -1):
        if ids[i:i + len(piece)] == piece:
            return i
    return -1


def encode_sample(tok, sample):
    """ids; per turn (first answer position, end, kind, chance), end being one past the answer's
    <|end|>; and the links of the facts and questions, which train.py may use to teach attention
    where to look: ("bind", head, from, to) from a value or a question's end to a token of its
    entity or relation, ("match", 0, from, to) from a question's end to the value that answers it,
    ("match", 1, from, to) from each token of an answer to the one that follows it in the
    document."""
    ids = encode_prompt(tok, sample["system"], sample["documents"])
    chat = len(ids)
    newline, marks, links, places = tok.plain("\n"), [], [], {}
    for (entity, relation), value in sample["facts"].items():
        e, v = tok.plain(entity), tok.plain(value)
        at = find(ids, v, 0, len(ids))
        named = find(ids, e, 0, at)
        places[value + "."] = at
        # A head attends to one token: one head to the first of the entity's tokens, another to the
        # second.
        links += [("bind", 0, at, named), ("bind", 1, at, named + min(1, len(e) - 1))]
        # The relation's word, if the sentence contains it.
        sentence = max(find(ids, tok.plain("."), 0, at), find(ids, newline, 0, at))
        word = find(ids, tok.plain(" " + relation), sentence, at)
        if word >= 0:
            links.append(("bind", 2, at, word))
    for turn in sample["turns"]:
        question = encode_question(tok, turn["question"])
        ids += question
        start = len(ids)
        e = tok.plain(turn.get("entity", ""))
        # In a follow-up question the entity is in an earlier question.
        named = find(ids, e, chat, start) if e else -1
        if named >= 0:
            links += [("bind", 0, start - 1, named),
                      ("bind", 1, start - 1, named + min(1, len(e) - 1))]
        word = (find(ids, tok.plain(" " + turn["relation"]), len(ids) - len(question), start)
                if e else -1)
        if word >= 0:
            links.append(("bind", 2, start - 1, word))
        if turn["kind"] == "answer":
            at = places[turn["answer"]]
            links.append(("match", 0, start - 1, at))
            links += [("match", 1, start - 1 + k, at + k)
                      for k in range(1, len(tok.plain(turn["answer"])) - 1)]
        ids += tok.plain(turn["answer"]) + [tok.special["<|end|>"]]
        marks.append((start, len(ids), turn["kind"], turn["chance"]))
        ids += newline
    return ids, marks, links


class RMSNorm(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x):
        x32 = x.float()
        return (x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + self.eps)
                * self.weight.float()).to(x.dtype)


def rotate(x, cos, sin):
    """Hugging Face's convention: the two halves of a head form the pairs."""
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads, self.kv_heads = c["num_attention_heads"], c["num_key_value_heads"]
        self.dim = c["head_dim"]
        width = c["hidden_size"]
        self.q_proj = nn.Linear(width, self.heads * self.dim, bias=False)
        self.k_proj = nn.Linear(width, self.kv_heads * self.dim, bias=False)
        self.v_proj = nn.Linear(width, self.kv_heads * self.dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.dim, width, bias=False)
        self.kv_dtype = None  # cached K and V are rounded to this type, as the server does

    def forward(self, x, cos, sin, past=None, watch=None):
        b, t, _ = x.shape
        q = rotate(self.q_proj(x).view(b, t, self.heads, self.dim).transpose(1, 2), cos, sin)
        k = rotate(self.k_proj(x).view(b, t, self.kv_heads, self.dim).transpose(1, 2), cos, sin)
        v = self.v_proj(x).view(b, t, self.kv_heads, self.dim).transpose(1, 2)
        if past is not None:
            if self.kv_dtype is not None:
                k, v = k.to(self.kv_dtype).to(x.dtype), v.to(self.kv_dtype).to(x.dtype)
            if past:
                k, v = torch.cat((past[0], k), 2), torch.cat((past[1], v), 2)
            past[:] = [k, v]
        share = self.heads // self.kv_heads
        k = k[:, :, None].expand(-1, -1, share, -1, -1).reshape(b, self.heads, -1, self.dim)
        v = v[:, :, None].expand(-1, -1, share, -1, -1).reshape(b, self.heads, -1, self.dim)
        # Not torch's fused attention, because its backward pass on the CPU takes several times as
        # long.
        scores = (q @ k.transpose(-1, -2)) * (1 / math.sqrt(self.dim))
        if t > 1:
            late = torch.full((t, k.shape[2]), -1e9, dtype=scores.dtype).triu(1 + k.shape[2] - t)
            scores = scores + late
        weights = scores.softmax(-1)
        if watch is not None:
            # The loss of the attention of these heads from one token to another: (row, head, from,
            # to).
            rows, seen = watch
            seen.append(-torch.log(weights[rows[0], rows[1], rows[2], rows[3]].float()
                                   + 1e-4).mean())
        y = weights.to(v.dtype) @ v
        return self.o_proj(y.transpose(1, 2).reshape(b, t, self.heads * self.dim))


class MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj = nn.Linear(c["hidden_size"], c["intermediate_size"], bias=False)
        self.up_proj = nn.Linear(c["hidden_size"], c["intermediate_size"], bias=False)
        self.down_proj = nn.Linear(c["intermediate_size"], c["hidden_size"], bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.input_layernorm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.self_attn = Attention(c)
        self.post_attention_layernorm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.mlp = MLP(c)

    def forward(self, x, cos, sin, past=None, watch=None):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, past, watch)
        return x + self.mlp(self.post_attention_layernorm(x))


class Trunk(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.layers = nn.ModuleList(Layer(c) for _ in range(c["num_hidden_layers"]))
        self.norm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])


class Llama(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.config = c
        self.model = Trunk(c)
        half = c["head_dim"] // 2
        freq = c["rope_theta"] ** (-torch.arange(half, dtype=torch.float64) / half)
        angle = torch.arange(c["max_position_embeddings"], dtype=torch.float64)[:, None] * freq
        self.register_buffer("cos", angle.cos().float(), persistent=False)
        self.register_buffer("sin", angle.sin().float(), persistent=False)

    def hidden(self, ids, past=None, start=0, watch=None):
        x = self.model.embed_tokens(ids)
        cos, sin = self.cos[start:start + ids.shape[1]], self.sin[start:start + ids.shape[1]]
        for i, layer in enumerate(self.model.layers):
            x = layer(x, cos, sin, None if past is None else past[i],
                      None if watch is None else watch.get(i))
        return self.model.norm(x)

    def logits(self, hidden):
        return hidden @ self.model.embed_tokens.weight.t()

    def forward(self, ids):
        return self.logits(self.hidden(ids))
