#!/usr/bin/env python3
"""Train the byte-level BPE tokenizer and write tokenizer.json and tokenizer_config.json.

Two rules make copying easier for the model. A space never merges with a capital letter, so that a
name has the same tokens at the start of an answer and within a sentence: " Zorbel" is " " + the
tokens of "Zorbel". Digits never merge, so that a number is its digits. Both rules only limit the
merges: any byte-level BPE reads the files.
"""
import argparse
import collections
import json
import os

import generate_data as data
from demo_common import HERE, PRETOKEN, SPECIAL, byte_alphabet

CHAT_TEMPLATE = (
    "{{ bos_token + '<|system|>\\n' }}"
    "{% if messages[0].role == 'system' %}{{ messages[0].content }}"
    '{% else %}{{ "' + data.SYSTEM_DEFAULT + '" }}{% endif %}' "{{ '\\n' }}"
    "{% if documents is defined and documents %}{% for doc in documents %}"
    "{{ '<|doc|>' + doc.title + '\\n' + doc.text + '\\n' }}{% endfor %}{% endif %}"
    "{{ eos_token + '\\n' }}"
    "{% for message in messages %}"
    "{% if message.role == 'user' %}{{ '<|user|>\\n' + message.content + eos_token + '\\n' }}"
    "{% elif message.role == 'assistant' %}"
    "{{ '<|assistant|>\\n' + message.content + eos_token + '\\n' }}"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
)


def corpus(samples):
    """Words with counts. Names are counted as syllables, so that merges learn whole syllables."""
    words = collections.Counter()
    writer = data.Writer(seed=11)
    for i in range(samples):
        s = writer.sample("full", 2, unknown=0.2, follow=0.3, talk=0.1)
        texts = [d["title"] + "\n" + d["text"] for d in s["documents"]] + [data.SYSTEM_DEFAULT]
        texts += [t["question"] for t in s["turns"]] + [t["answer"] for t in s["turns"]]
        texts += [s["system"] or ""]
        for text in texts:
            for word in PRETOKEN.findall(text):
                words[word] += 1
    known = {w for w in words if words[w] >= samples // 200}
    words = collections.Counter({w: c for w, c in words.items() if w in known})
    floor = samples // 10
    for s in data.FIRST_SYLLABLES:
        words[s[0].upper() + s[1:]] += 4 * floor
    for s in data.NEXT_SYLLABLES:
        words[s] += 4 * floor
    for s in data.ALL_SYLLABLES:
        words[s] += 20
        words[s[0].upper() + s[1:]] += 20
    return words


def allowed(left, right):
    if any(c.isdigit() for c in left + right):
        return False
    # "Ġ" is the space, which merges with lower-case letters only.
    return not (left == "Ġ" and not ("a" <= right[0] <= "z"))


def train(words, count):
    table = byte_alphabet()
    entries = [([table[b] for b in w.encode()], c) for w, c in sorted(words.items())]
    pairs, where = collections.Counter(), collections.defaultdict(set)
    for n, (parts, c) in enumerate(entries):
        for pair in zip(parts, parts[1:]):
            pairs[pair] += c
            where[pair].add(n)
    merges = []
    while len(merges) < count:
        best, best_count = None, 0
        for pair, c in pairs.items():
            if c > best_count or (c == best_count and best is not None and pair < best):
                if allowed(*pair):
                    best, best_count = pair, c
        if best is None or best_count < 20:
            break
        merges.append(best)
        for n in list(where[best]):
            parts, c = entries[n]
            for pair in zip(parts, parts[1:]):
                pairs[pair] -= c
            i = 0
            while i < len(parts) - 1:
                if (parts[i], parts[i + 1]) == best:
                    parts[i:i + 2] = [parts[i] + parts[i + 1]]
                i += 1
            for pair in zip(parts, parts[1:]):
                pairs[pair] += c
                where[pair].add(n)
        del pairs[best]
    return merges


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--vocab", type=int, default=1536,
                        help="vocabulary size, special tokens included")
    parser.add_argument("--samples", type=int, default=4000)
    args = parser.parse_args()
    merges = train(corpus(args.samples), args.vocab - len(SPECIAL) - 256)
    vocab = {s: i for i, s in enumerate(SPECIAL)}
    for c in sorted(byte_alphabet().values()):
        vocab[c] = len(vocab)
    for a, b in merges:
        vocab[a + b] = len(vocab)
    added = [{"id": i, "content": s, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False,
              "special": True} for i, s in enumerate(SPECIAL)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                  "use_regex": True}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None,
                  "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": vocab, "merges": [a + " " + b for a, b in merges]},
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 2048,
        "bos_token": "<|bos|>", "eos_token": "<|end|>", "pad_token": "<|pad|>",
        "add_bos_token": False, "add_eos_token": False, "clean_up_tokenization_spaces": False,
        "added_tokens_decoder": {str(t["id"]): {k: t[k] for k in t if k != "id"} for t in added},
        "chat_template": CHAT_TEMPLATE,
    }
    for name, value in (("tokenizer.json", tokenizer), ("tokenizer_config.json", config)):
        with open(os.path.join(HERE, name), "w", encoding="utf-8") as f:
            json.dump(value, f, ensure_ascii=False, indent=1)
            f.write("\n")
    print(len(vocab), "tokens,", len(merges), "merges")


if __name__ == "__main__":
    main()
