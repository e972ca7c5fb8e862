"""Write the golden logits and scores of models that classify texts and pairs of texts.

The program is run by hand, only to add or change a case; the tests read the committed files. The
cases were written with sentence-transformers 6.2.0, transformers 5.23.0 and torch 2.15.0 of PyPI:

    python3 -m venv /tmp/hf
    /tmp/hf/bin/pip install torch sentence-transformers
    /tmp/hf/bin/python tests/golden/make_rerank_golden.py [CASE ...]

Each case is a folder: a random model with its tokenizer (tests/tools/tiny_bert.py) and texts.json.
The list "texts" has logits of single texts by transformers. The list "pairs" has logits of pairs
by transformers, and, for a model with one label, the score by the CrossEncoder of
sentence-transformers, which reads the activation from the model's files. Texts are cut to 48
tokens, the length of the table of positions. Whether the second text has tokens of type 1 is in
tokenizer_config.json: in rerank-bert it has, in classify-bert it has not. Cases that exist are left
alone unless they are named.
"""
from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tools"))
import tiny_bert  # noqa: E402
from hf_files import write_json  # noqa: E402

MAX_TOKENS = 48
LONG = "the river passes the house of the captain "
TEXTS = ["The tower of Vomta", "a", "ships, rivers and houses: who is the captain?", LONG * 6]
PAIRS = [("who is the captain?", "The captain of the ship"), ("a", "b"),
         ("the tower", LONG * 6), (LONG * 6, "the tower"), (LONG * 4, LONG * 5),
         (LONG * 5, LONG * 5)]
SMALL = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2}
TORCH = "torch.nn.modules."
# Kind, seed, number of labels, changes of config.json.
CASES: dict[str, tuple[str, int, int, dict[str, Any]]] = {
    "rerank-bert": ("bert", 11, 1, {
        "sbert_ce_default_activation_function": TORCH + "linear.Identity"}),
    "rerank-xlm-roberta": ("xlm-roberta", 12, 1, {
        "sentence_transformers": {"activation_fn": TORCH + "activation.Sigmoid",
                                  "version": "4.0.1"}}),
    "classify-bert": ("bert", 13, 3, {"id2label": {"0": "calm", "1": "storm", "2": "fog"}}),
}


def make_case(name: str) -> None:
    import torch
    from sentence_transformers import CrossEncoder
    from transformers import AutoModelForSequenceClassification, AutoTokenizer
    kind, seed, labels, changes = CASES[name]
    out = HERE / name
    tiny_bert.make(out, kind, seed=seed, labels=labels, changes={**SMALL, **changes},
                   prefix="bert." if kind == "bert" else "roberta.")
    names = ["input_ids", *(["token_type_ids"] if name == "rerank-bert" else []), "attention_mask"]
    tokens = json.loads((out / "tokenizer_config.json").read_text())
    write_json(out / "tokenizer_config.json", {**tokens, "model_input_names": names})
    model = AutoModelForSequenceClassification.from_pretrained(out).eval()
    tokenizer = AutoTokenizer.from_pretrained(out)

    def logits(*texts: str) -> tuple[int, list[float]]:
        batch = tokenizer(*texts, truncation=True, max_length=MAX_TOKENS, return_tensors="pt")
        with torch.no_grad():
            row = model(**batch).logits[0].double().tolist()
        return batch["input_ids"].shape[1], [float(f"{x:.7g}") for x in row]

    result: dict[str, list[Any]] = {"texts": [], "pairs": []}
    for text in TEXTS:
        n, row = logits(text)
        result["texts"].append({"text": text, "n_tokens": n, "logits": row})
    for first, second in PAIRS:
        n, row = logits(first, second)
        case = {"first": first, "second": second, "n_tokens": n, "logits": row}
        if labels == 1:
            encoder = CrossEncoder(str(out), device="cpu", max_length=MAX_TOKENS)
            case["score"] = float(f"{encoder.predict((first, second)):.7g}")
        result["pairs"].append(case)
    write_json(out / "texts.json", result)
    print(f"{name}: {result}")


def main() -> None:
    new = [name for name in CASES if not (HERE / name / "texts.json").exists()]
    for name in sys.argv[1:] or new:
        make_case(name)


if __name__ == "__main__":
    main()
