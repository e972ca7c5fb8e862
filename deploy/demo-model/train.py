#!/usr/bin/env python3
"""Train the demo model. The training can be stopped (Ctrl-C, SIGTERM) and started again: the
checkpoint holds all state.

The curriculum starts with documents that all state the same relation, so that only the entity
decides. A model that begins with mixed relations learns to copy the value after the asked relation,
and then improves no further. The next stage begins when the accuracy of first answer tokens exceeds
the stage's bar, or when the stage has used its share of all tokens.
"""
import argparse
import json
import math
import os
import random
import signal
import time

import torch
import torch.nn.functional as F

from demo_common import HERE, Llama, Tokenizer, encode_sample
from generate_data import Writer

# For each stage: the accuracy of first tokens that ends it, its largest share of all tokens, and
# the mix of (weight, mode, level, unknown, follow, talk).
STAGES = [
    (0.90, 0.15, [(1.0, "entity", 0, 0.0, 0.0, 0.0)]),
    (0.90, 0.15, [(0.5, "entity", 1, 0.0, 0.0, 0.0), (0.4, "both", 0, 0.0, 0.0, 0.0),
                  (0.1, "relation", 0, 0.0, 0.0, 0.0)]),
    (0.93, 0.20, [(0.15, "entity", 1, 0.1, 0.0, 0.0), (0.45, "both", 1, 0.1, 0.0, 0.0),
                  (0.4, "full", 1, 0.2, 0.0, 0.03)]),
    (2.00, 1.00, [(0.1, "entity", 2, 0.2, 0.1, 0.0), (0.2, "both", 2, 0.2, 0.2, 0.0),
                  (0.7, "full", 2, 0.25, 0.2, 0.06)]),
]


# Heads whose attention is trained directly while --guide is above 0. Without it the model chose
# documents at random: finding the value's entity helps only a model that finds the question's
# entity, and vice versa.
BIND_LAYER, BIND_HEADS = 1, (0, 2, 4)
MATCH_LAYER, MATCH_HEADS = 3, (0, 2)


def initialize(model, seed):
    """Random weights with two hints that shorten the plateau before the model learns to look things
    up.

    Heads of layer 0 attend to the token 1 to 4 places back (a direction common to all embeddings,
    rotated by that distance). In the other layers queries and keys start as the same projection, so
    that tokens attend to similar tokens, and the output as the transpose of the values, so that
    they copy them."""
    c = model.config
    g = torch.Generator().manual_seed(seed)
    width, dim = c["hidden_size"], c["head_dim"]
    share = c["num_attention_heads"] // c["num_key_value_heads"]
    common = torch.randn(width, generator=g)
    common /= common.norm()

    def rotated(vector, steps):
        half = dim // 2
        angle = steps * c["rope_theta"] ** (-torch.arange(half, dtype=torch.float32) / half)
        a, b = vector[:half], vector[half:]
        return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()))

    def projection():
        return torch.linalg.qr(torch.randn(width, dim, generator=g))[0].t()

    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() == 2:
                p.copy_(torch.randn(p.shape, generator=g) * 0.02)
        model.model.embed_tokens.weight += 0.2 * common
        for n, layer in enumerate(model.model.layers):
            a = layer.self_attn
            layer.mlp.down_proj.weight.mul_(0.5)
            for kv in range(c["num_key_value_heads"]):
                rows = slice(kv * dim, (kv + 1) * dim)
                look, copy = projection(), projection()
                a.v_proj.weight[rows] += 0.5 * copy
                positional = n == 0 and kv < 2
                if positional:
                    # Only the fast half of the rotary pairs distinguishes neighbouring distances.
                    tone = torch.zeros(dim)
                    tone[:5] = 1 / math.sqrt(5)
                    a.k_proj.weight[rows] += 1.5 * torch.outer(rotated(tone, 1 + 2 * kv), common)
                else:
                    a.k_proj.weight[rows] += 0.5 * look
                for q in range(kv * share, (kv + 1) * share):
                    rows = slice(q * dim, (q + 1) * dim)
                    if positional:
                        a.q_proj.weight[rows] += 1.5 * torch.outer(rotated(tone, -(q % share)),
                                                                   common)
                        a.o_proj.weight[:, rows] += 0.5 * projection().t()
                    else:
                        a.q_proj.weight[rows] += 0.5 * look
                        a.o_proj.weight[:, rows] += 0.5 * copy.t()


class Muon:
    """Momentum with an orthogonalized update (Newton-Schulz) for the layers' matrices, AdamW for
    the rest."""

    def __init__(self, model, dtype, betas=(0.9, 0.95)):
        self.dtype = dtype
        self.matrices = [p for n, p in model.named_parameters()
                         if p.dim() == 2 and "embed" not in n]
        rest = [p for n, p in model.named_parameters() if not (p.dim() == 2 and "embed" not in n)]
        self.momentum = [torch.zeros_like(p) for p in self.matrices]
        self.adam = torch.optim.AdamW(rest, lr=1e-3, betas=betas, weight_decay=0.0)
        shapes = {}
        for i, p in enumerate(self.matrices):
            shapes.setdefault((max(p.shape), min(p.shape)), []).append(i)
        self.groups = list(shapes.values())

    @torch.no_grad()
    def step(self, lr, adam_lr, decay=0.01):
        for group in self.groups:
            updates = []
            for i in group:
                p, m = self.matrices[i], self.momentum[i]
                m.mul_(0.95).add_(p.grad)
                u = p.grad + 0.95 * m
                updates.append(u if p.shape[0] <= p.shape[1] else u.t())
            x = torch.stack(updates)
            x = (x / (x.flatten(1).norm(dim=1)[:, None, None] + 1e-7)).to(self.dtype)
            for _ in range(5):
                y = x @ x.transpose(1, 2)
                x = 3.4445 * x + (-4.7750 * y + 2.0315 * (y @ y)) @ x
            for i, u in zip(group, x.float()):
                p = self.matrices[i]
                u = u if p.shape[0] <= p.shape[1] else u.t()
                scale = math.sqrt(max(1.0, p.shape[0] / p.shape[1]))
                p.mul_(1 - lr * decay).add_(u, alpha=-lr * scale)
        for group in self.adam.param_groups:
            group["lr"] = adam_lr
        self.adam.step()

    def zero_grad(self):
        for p in self.matrices:
            p.grad = None
        self.adam.zero_grad(set_to_none=True)

    def state_dict(self):
        return {"momentum": self.momentum, "adam": self.adam.state_dict()}

    def load_state_dict(self, state):
        for m, saved in zip(self.momentum, state["momentum"]):
            m.copy_(saved)
        self.adam.load_state_dict(state["adam"])


def batches(tok, writer, stage, rng, budget, pool=6):
    """Batches of about `budget` tokens, each of samples of similar length, so that there is little
    padding."""
    mix = STAGES[stage][2]
    while True:
        samples, total = [], 0
        while total < pool * budget:
            _, mode, level, unknown, follow, talk = rng.choices(mix, weights=[m[0] for m in mix])[0]
            s = writer.sample(mode, level, unknown=unknown, follow=follow, talk=talk)
            if s["turns"]:
                samples.append(encode_sample(tok, s))
                total += len(samples[-1][0])
        samples.sort(key=lambda s: len(s[0]))
        out, current = [], []
        for s in samples:
            if current and len(s[0]) * (len(current) + 1) > budget:
                out.append(current)
                current = []
            current.append(s)
        out.append(current)
        rng.shuffle(out)
        yield from out


def collate(batch, other):
    """(ids, targets, weights, the links (row, head, from, to) of both kinds, and the rows of first
    answer tokens, for the statistics)."""
    length = max(len(ids) for ids, _, _ in batch)
    x = torch.zeros(len(batch), length, dtype=torch.long)
    w = torch.zeros(len(batch), length - 1)
    first, bind, match = [], [], []
    for i, (ids, marks, links) in enumerate(batch):
        x[i, :len(ids)] = torch.tensor(ids)
        w[i, :len(ids) - 1] = other
        for start, end, kind, chance in marks:
            w[i, start - 1:end - 1] = 1.0
            first.append((i * (length - 1) + start - 1, kind, chance))
        for kind, head, source, target in links:
            if kind == "bind":
                bind.append((i, BIND_HEADS[head], source, target))
            else:
                match.append((i, MATCH_HEADS[head], source, target))
    # Not empty, so that one compiled graph serves all batches: the first token attends only to
    # itself, loss 0.
    bind, match = bind or [(0, 0, 0, 0)], match or [(0, 0, 0, 0)]
    return x[:, :-1], x[:, 1:], w, torch.tensor(bind).t(), torch.tensor(match).t(), first


class Threads:
    """Set the number of threads to the cores that other programs leave free. All threads wait for
    the slowest, and at a low priority that is one that shares its core: two threads may then be
    slower than one."""

    def __init__(self, most):
        self.most, self.time, self.last = most, time.time(), self.used()
        torch.set_num_threads(most)

    @staticmethod
    def used():
        with open("/proc/stat") as f:
            v = [int(x) for x in f.readline().split()[1:9]]
        own = os.times()
        return (sum(v) - v[3] - v[4]) / os.sysconf("SC_CLK_TCK") - own.user - own.system

    def adapt(self):
        now = time.time()
        if now - self.time > 2:
            used = self.used()
            others = (used - self.last) / (now - self.time)
            torch.set_num_threads(max(1, min(self.most, round(self.most - others))))
            self.time, self.last = now, used


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoint", default="/tmp/demo/model.pt")
    parser.add_argument("--tokens", type=float, default=60e6, help="all tokens of the training")
    parser.add_argument("--decay", type=float, default=0.35,
                        help="share of the tokens over which the rate falls to 0")
    parser.add_argument("--batch", type=int, default=4096, help="tokens per step")
    parser.add_argument("--lr", type=float, default=0.015, help="rate of the layers' matrices")
    parser.add_argument("--adam-lr", type=float, default=0.003, help="rate of embeddings and norms")
    parser.add_argument("--other", type=float, default=0.1,
                        help="weight of tokens that are not answers")
    parser.add_argument("--guide", type=float, default=0.3, help="weight of the hint where to look")
    parser.add_argument("--wild", type=float, default=0.15,
                        help="share of names made of rare syllables")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2, help="at most so many")
    parser.add_argument("--float32", action="store_true", help="no bfloat16")
    parser.add_argument("--compile", action="store_true",
                        help="torch.compile, needs torch 2 and g++")
    parser.add_argument("--plain-init", action="store_true",
                        help="ordinary random weights, for comparison")
    parser.add_argument("--save-seconds", type=float, default=120)
    parser.add_argument("--seconds", type=float, default=1e9,
                        help="end the training after so many seconds; "
                             "the rate falls towards that end too")
    args = parser.parse_args()
    threads = Threads(args.threads)
    torch.manual_seed(args.seed)
    with open(os.path.join(HERE, "config.json")) as f:
        config = json.load(f)
    tok = Tokenizer()
    model = Llama(config)
    if args.plain_init:
        for p in model.parameters():
            if p.dim() == 2:
                torch.nn.init.normal_(p, std=0.02)
    else:
        initialize(model, args.seed)
    opt = Muon(model, torch.float32 if args.float32 else torch.bfloat16)
    state = {"step": 0, "tokens": 0, "seconds": 0.0, "stage": 0, "stage_tokens": 0, "restarts": 0}
    if os.path.exists(args.checkpoint):
        saved = torch.load(args.checkpoint, map_location="cpu")
        model.load_state_dict(saved["model"])
        opt.load_state_dict(saved["optimizer"])
        state = saved["state"]
        state["restarts"] += 1
    # A resumed run must not repeat the samples of the first one.
    rng = random.Random(args.seed * 1000 + state["restarts"])
    writer = Writer(args.seed * 1000 + 500 + state["restarts"], wild=args.wild)
    print(sum(p.numel() for p in model.parameters()), "parameters, torch", torch.__version__, state,
          flush=True)
    source = batches(tok, writer, state["stage"], rng, args.batch)
    hits = {"answer": None, "unknown": None, "talk": None}
    chance_ema, loss_ema = None, None
    begin, last_save, last_print = time.time(), time.time(), time.time()
    printed_tokens, base_seconds = state["tokens"], state["seconds"]
    in_stage = 0

    def forward(x, y, w, bind, match):
        seen = []
        hidden = model.hidden(x, watch={BIND_LAYER: (bind, seen), MATCH_LAYER: (match, seen)})
        logits = model.logits(hidden).float().reshape(-1, config["vocab_size"])
        ce = F.cross_entropy(logits, y.reshape(-1), reduction="none")
        right = logits.argmax(-1) == y.reshape(-1)
        return (ce * w.reshape(-1)).sum() / w.sum(), seen[0], seen[1], right

    if args.compile:
        import torch._inductor.config as inductor
        inductor.cpp.dynamic_threads = True
    function = torch.compile(forward, dynamic=True) if args.compile else forward

    def save():
        torch.save({"model": model.state_dict(), "optimizer": opt.state_dict(), "state": state},
                   args.checkpoint + ".new")
        os.replace(args.checkpoint + ".new", args.checkpoint)

    stop = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.append(True))
    while state["tokens"] < args.tokens and time.time() - begin < args.seconds and not stop:
        threads.adapt()
        x, y, w, bind, match, first = collate(next(source), args.other)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=not args.float32):
            loss, bound, matched, hit = function(x, y, w, bind, match)
        opt.zero_grad()
        guided = loss + args.guide * (bound + matched)
        guided.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        left = (args.tokens - state["tokens"]) / (args.tokens * args.decay)
        left = min(left, (args.seconds - (time.time() - begin)) / (args.seconds * args.decay))
        rate = min(1.0, (state["step"] + 1) / 100, max(0.02, left))
        opt.step(args.lr * rate, args.adam_lr * rate)

        state["step"] += 1
        state["tokens"] += x.numel()
        state["stage_tokens"] += x.numel()
        state["seconds"] = base_seconds + time.time() - begin
        in_stage += 1
        rows = torch.tensor([r for r, _, _ in first])
        right = hit.reshape(-1)[rows].float().tolist()
        bound_ema = bound.item() if loss_ema is None else 0.98 * bound_ema + 0.02 * bound.item()
        match_ema = matched.item() if loss_ema is None else 0.98 * match_ema + 0.02 * matched.item()
        loss_ema = loss.item() if loss_ema is None else 0.98 * loss_ema + 0.02 * loss.item()
        for kind in hits:
            values = [h for h, (_, k, _) in zip(right, first) if k == kind]
            if values:
                mean = sum(values) / len(values)
                hits[kind] = mean if hits[kind] is None else 0.97 * hits[kind] + 0.03 * mean
        chances = [c for _, k, c in first if k == "answer"]
        if chances:
            mean = sum(chances) / len(chances)
            chance_ema = mean if chance_ema is None else 0.97 * chance_ema + 0.03 * mean
        now = time.time()
        if now - last_print > 15:
            show = lambda v: "-" if v is None else f"{v:.3f}"
            speed = (state['tokens'] - printed_tokens) / (now - last_print)
            print(f"step {state['step']} tokens {state['tokens'] / 1e6:.2f}M {speed:.0f}/s "
                  f"stage {state['stage']} loss {loss_ema:.3f} bind {bound_ema:.2f} "
                  f"match {match_ema:.2f} first {show(hits['answer'])} chance {show(chance_ema)} "
                  f"unknown {show(hits['unknown'])} talk {show(hits['talk'])} rate {rate:.3f} "
                  f"threads {torch.get_num_threads()}", flush=True)
            last_print, printed_tokens = now, state["tokens"]
        bar, share, _ = STAGES[state["stage"]]
        if in_stage > 60 and (hits["answer"] > bar or state["stage_tokens"] > share * args.tokens):
            state["stage"] += 1
            state["stage_tokens"], in_stage = 0, 0
            hits, chance_ema, loss_ema = {k: None for k in hits}, None, None
            print("stage", state["stage"], flush=True)
            source = batches(tok, writer, state["stage"], rng, args.batch)
        if now - last_save > args.save_seconds:
            save()
            last_save = now
    save()
    print("stopped at", state, flush=True)


if __name__ == "__main__":
    main()
