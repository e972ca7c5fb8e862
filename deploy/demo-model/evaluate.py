#!/usr/bin/env python3
"""Exact match of the demo model on names and numbers that never occur in training.

    evaluate.py                                  PyTorch, float32 arithmetic on the exported bfloat16 weights
    evaluate.py --url http://127.0.0.1:8000      asks the server too and compares both answers

Each prompt is one single-turn chat. An answer counts when it equals the expected one character by character.
"""
import argparse
import json
import os
import random
import time
import urllib.request

import torch

from demo_common import HERE, Llama, Tokenizer, encode_prompt, encode_question, prompt_spans
from export import read_safetensors
from generate_data import Writer

MAX_ANSWER = 24


def load(path):
    with open(os.path.join(HERE, "config.json")) as f:
        model = Llama(json.load(f))
    model.load_state_dict(read_safetensors(path))
    return model.eval()


def make_questions(count, documents, unknown_share, seed):
    """`count` single questions about `documents` documents, all names and numbers held out."""
    writer, rng, out = Writer(seed, held_out=True), random.Random(seed), []
    while len(out) < count:
        n = len(out)
        unknown = documents == 0 or int((n + 1) * unknown_share) > int(n * unknown_share)
        sample = writer.sample("full", 2, documents=documents, turns=1, unknown=1.0 if unknown else 0.0)
        wanted = "unknown" if unknown else "answer"
        if sample["turns"] and sample["turns"][0]["kind"] == wanted:
            rng.shuffle(sample["documents"])
            sample["system"] = None
            out.append(sample)
    return out


@torch.no_grad()
def generate(model, tok, prompts, temperature, seed):
    """Answers of prompts, each with its own KV; prompts of one length go together."""
    end = tok.special["<|end|>"]
    rng = torch.Generator().manual_seed(seed)
    answers = [None] * len(prompts)
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    while order:
        length = len(prompts[order[0]])
        group = [i for i in order[:32] if len(prompts[i]) == length]
        order = order[len(group):]
        past = [[] for _ in model.model.layers]
        x = torch.tensor([prompts[i] for i in group])
        logits = model.logits(model.hidden(x, past)[:, -1])
        out, done = [[] for _ in group], [False] * len(group)
        for step in range(MAX_ANSWER):
            if temperature > 0:
                token = torch.multinomial((logits / temperature).softmax(-1), 1, generator=rng)[:, 0]
            else:
                token = logits.argmax(-1)
            for n, t in enumerate(token.tolist()):
                done[n] = done[n] or t == end
                if not done[n]:
                    out[n].append(t)
            if all(done):
                break
            logits = model.logits(model.hidden(token[:, None], past, length + step)[:, -1])
        for n, i in enumerate(group):
            answers[i] = tok.decode(out[n])
    return answers


def ask_server(url, served, sample, temperature):
    body = {"model": served, "messages": [{"role": "user", "content": sample["turns"][0]["question"]}],
            "documents": sample["documents"], "temperature": temperature, "max_tokens": MAX_ANSWER}
    request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as reply:
        return json.load(reply)["choices"][0]["message"]["content"]


def served_name(url):
    with urllib.request.urlopen(url + "/v1/models", timeout=30) as reply:
        return json.load(reply)["data"][0]["id"]


def share(hits):
    return "   -   " if not hits else f"{100 * sum(hits) / len(hits):6.2f}%"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default=os.path.join(HERE, "model.safetensors"))
    parser.add_argument("--url", help="also ask this server")
    parser.add_argument("--documents", type=int, nargs="+", default=[0, 1, 2, 3, 4, 5, 6])
    parser.add_argument("--count", type=int, default=300, help="questions per number of documents")
    parser.add_argument("--unknown", type=float, default=0.25, help="share of questions the documents do not answer")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=20261121)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--show", type=int, default=0, help="print so many wrong answers")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    tok, model = Tokenizer(), load(args.model)
    served = served_name(args.url) if args.url else None
    print(sum(p.numel() for p in model.parameters()), "parameters; exact match in PyTorch"
          + (" | server | both give the same text" if args.url else ""))
    begin, totals, apart = time.time(), {"answer": [], "unknown": []}, 0
    for documents in args.documents:
        samples = make_questions(args.count, documents, args.unknown, args.seed + documents)
        prompts = []
        for s in samples:
            question = s["turns"][0]["question"]
            prompts.append(encode_prompt(tok, None, s["documents"]) + encode_question(tok, question))
            # The server tokenizes document by document; the whole text must give the same ids.
            whole = "".join(prompt_spans(None, s["documents"])) + "<|end|>\n<|user|>\n" + question + "<|end|>\n<|assistant|>\n"
            apart += tok.encode(whole) != prompts[-1]
        answers = generate(model, tok, prompts, args.temperature, args.seed)
        theirs = [ask_server(args.url, served, s, args.temperature) for s in samples] if args.url else answers
        here, there, same = {"answer": [], "unknown": []}, {"answer": [], "unknown": []}, []
        for s, ours, other in zip(samples, answers, theirs):
            turn = s["turns"][0]
            here[turn["kind"]].append(ours == turn["answer"])
            there[turn["kind"]].append(other == turn["answer"])
            same.append(ours == other)
            if args.show and ours != turn["answer"]:
                args.show -= 1
                print("  wrong:", turn["question"], "expected", repr(turn["answer"]), "got", repr(ours), s["documents"])
        line = f"{documents} documents, n {len(samples)}: "
        for kind in ("answer", "unknown"):
            line += f"{kind} {share(here[kind])} of {len(here[kind])}"
            line += f" | {share(there[kind])}  " if args.url else "  "
            totals[kind] += here[kind]
        print(line + (f"| {share(same)}" if args.url else ""), flush=True)
    for kind, hits in totals.items():
        print(f"all {kind}: {share(hits)} of {len(hits)}")
    print(f"prompts whose ids differ when tokenized whole: {apart}; {time.time() - begin:.0f} s")


if __name__ == "__main__":
    main()
