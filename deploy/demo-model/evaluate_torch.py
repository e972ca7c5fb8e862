"""The PyTorch path of evaluate.py: computes the answers that the server should give.

As in the server, arithmetic is float32 on the exported bfloat16 weights, and K and V are rounded to
bfloat16 (the server's default) before any token attends to them. Sampling follows base/rng.h and
engine/run/sampler.c.
"""
import json
import os

import numpy as np
import torch

from demo_common import HERE, Llama, Tokenizer, encode_question, prompt_spans
from evaluate import MAX_ANSWER, asked_document, prompt_text
from export import read_safetensors

ROWS_AT_ONCE = 32
MASK32 = 0xFFFFFFFF


def uniform(seed, n):
    """rng_uniform of base/rng.h: Philox4x32-10 of counter n, 24 bits in [0, 1)."""
    k0, k1 = seed & MASK32, seed >> 32 & MASK32
    c0, c1, c2, c3 = n & MASK32, n >> 32 & MASK32, 0, 0
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & MASK32, (p0 >> 32) ^ c3 ^ k1, p0 & MASK32
        k0, k1 = (k0 + 0x9E3779B9) & MASK32, (k1 + 0xBB67AE85) & MASK32
    return (c0 >> 8) * 2.0 ** -24


def draw(logits, temperature, seed, n):
    """draw_unfiltered of engine/run/sampler.c: the first id at which the sum of weights, in id
    order, exceeds u."""
    x = logits.astype(np.float64)
    sums = np.cumsum(np.exp((x - x.max()) * (1.0 / float(np.float32(temperature)))))
    return min(int(np.searchsorted(sums, uniform(seed, n) * sums[-1], side="right")), len(sums) - 1)


class TorchPath:
    def __init__(self, path, kv_dtype, threads, temperatures):
        """Each prompt is computed once and continued at all temperatures; the answers are kept for
        later rows."""
        torch.set_num_threads(threads)
        self.temperatures, self.known = temperatures, {}
        with open(os.path.join(HERE, "config.json")) as f:
            self.model = Llama(json.load(f))
        self.model.load_state_dict(read_safetensors(path))
        self.model.eval()
        for layer in self.model.model.layers:
            layer.self_attn.kv_dtype = torch.bfloat16 if kv_dtype == "bf16" else None
        self.tok = Tokenizer()
        self.end = self.tok.special["<|end|>"]
        self.ids_differ = 0
        count = sum(p.numel() for p in self.model.parameters())
        self.words = (f"PyTorch {torch.__version__}, float32, K and V in {kv_dtype}; "
                      f"{count} parameters of {path}.")

    def spans(self, sample):
        """Ids of the preamble, of each document, and of the rest, tokenized separately as the
        server does."""
        out = [self.tok.encode(text) for text in prompt_spans(None, sample["documents"])]
        question = encode_question(self.tok, sample["turns"][0]["question"])
        rest = [self.end] + self.tok.plain("\n") + question
        return out + [rest]

    def answers(self, samples, temperature, seed, whole):
        prompts = []
        for s in samples:
            apart = sum(self.spans(s), [])
            if whole:
                prompts.append(self.tok.encode(prompt_text(s)))
                self.ids_differ += prompts[-1] != apart
            else:
                prompts.append(apart)
        return self.generate(prompts, temperature, seed)

    @torch.no_grad()
    def generate(self, prompts, temperature, seed):
        """Answers of prompts, each with its own KV; prompts of equal length form a batch. Prompt i
        uses seed + i."""
        keys = [(tuple(p), seed + i) for i, p in enumerate(prompts)]
        order = sorted((i for i, k in enumerate(keys) if k not in self.known),
                       key=lambda i: len(prompts[i]))
        while order:
            length = len(prompts[order[0]])
            group = [i for i in order[:ROWS_AT_ONCE] if len(prompts[i]) == length]
            order = order[len(group):]
            past = [[] for _ in self.model.model.layers]
            hidden = self.model.hidden(torch.tensor([prompts[i] for i in group]), past)
            for t in self.temperatures:
                # Decoding replaces the tensors in these copies of the lists and does not change the
                # prompt's.
                texts = self.decode([list(layer) for layer in past], hidden, length, t,
                                    [seed + i for i in group])
                for i, text in zip(group, texts):
                    self.known.setdefault(keys[i], {})[t] = text
        return [self.known[k][temperature] for k in keys]

    @torch.no_grad()
    def decode(self, past, hidden, length, temperature=0.0, seeds=()):
        """The texts generated for prompts of equal length whose KV is in past."""
        out, done = [[] for _ in range(len(hidden))], [False] * len(hidden)
        logits = self.model.logits(hidden[:, -1])
        for step in range(MAX_ANSWER):
            if temperature > 0:
                tokens = [draw(row, temperature, seed, step)
                          for row, seed in zip(logits.numpy(), seeds)]
            else:
                tokens = logits.argmax(-1).tolist()
            for n, t in enumerate(tokens):
                done[n] = done[n] or t == self.end
                if not done[n]:
                    out[n].append(t)
            if all(done):
                break
            hidden = self.model.hidden(torch.tensor(tokens)[:, None], past, length + step)
            logits = self.model.logits(hidden[:, -1])
        # The server leaves special tokens out of its text.
        special = set(self.tok.special.values())
        return [self.tok.decode([t for t in ids if t not in special]) for ids in out]

    @torch.no_grad()
    def swapped(self, samples):
        """Show the effect of wrong KV: (questions, right answers with swapped KV, right answers
        with their own KV).

        Answerable questions are paired so that the documents that they ask about have equally many
        tokens. In the place of its document, each prompt gets the K and V that the other prompt's
        document would have there; the rest is unchanged. (Swapping two documents of one prompt
        would only change their order: positions are part of K.)"""
        lengths = {}
        for s in samples:
            if s["turns"][0]["kind"] == "answer":
                spans, at = self.spans(s), asked_document(s)
                lengths.setdefault(len(spans[1 + at]), []).append((s, spans, 1 + at))
        total = right = control = 0
        for group in lengths.values():
            for first, second in zip(group[0::2], group[1::2]):
                for (s, spans, at), (_, others, other_at) in ((first, second), (second, first)):
                    wrong, own = self.with_documents(spans, at, (others[other_at], spans[at]))
                    total += 1
                    right += wrong == s["turns"][0]["answer"]
                    control += own == s["turns"][0]["answer"]
        return total, right, control

    def with_documents(self, spans, at, documents):
        """For each document, as long as span `at`: the answer when that span has the KV of the
        document."""
        begin = sum(len(s) for s in spans[:at])
        kept, answers = sum(spans[:-1], []), []
        past = [[] for _ in self.model.model.layers]
        self.model.hidden(torch.tensor([kept]), past)
        for ids in documents:
            end, mixed = begin + len(ids), [[own.clone() for own in layer] for layer in past]
            there = [[own[:, :, :begin] for own in layer] for layer in past]
            self.model.hidden(torch.tensor([ids]), there, begin)
            for layer, other in zip(mixed, there):
                for own, foreign in zip(layer, other):
                    own[:, :, begin:end] = foreign[:, :, begin:]
            hidden = self.model.hidden(torch.tensor([spans[-1]]), mixed, len(kept))
            answers.append(self.decode(mixed, hidden, len(kept) + len(spans[-1]))[0])
        return answers
