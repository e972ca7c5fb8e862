#!/usr/bin/env python3
"""A real trained model: stories260K against the recorded logits and texts of llama2.c.

For the five prompts of shared/data/model-stories260K/golden-llama2c:
  logits within 1e-3 of the row's largest |logit|, in one chunk and in chunks of 7;
  the best id equal wherever the golden's first and second logit are more than 1e-3 apart;
  tokenizing the prompt gives the golden's ids, over HTTP;
  greedy generation over HTTP gives the golden's text.
"""
from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "tests" / "tools"))
import tarn_test  # noqa: E402

SOURCE = tarn_test.shared_data("model-stories260K")
tarn_test.need_numpy()
import numpy as np  # noqa: E402
import stories_to_hf  # noqa: E402

VOCAB = 512
TOLERANCE = 1e-3
GAP = 1e-3


@dataclass
class Golden:
    name: str
    prompt: str
    prompt_ids: list[int]
    ids: list[int]       # input of each position
    best: list[int]      # argmax of each position
    gap: list[float]
    logits: np.ndarray   # [positions, VOCAB]
    text: str            # prompt and continuation


def read_golden(name: str, prompt: str) -> Golden:
    folder = SOURCE / "golden-llama2c"
    lines = (folder / f"{name}.tokens.txt").read_text().splitlines()
    prompt_ids = [int(word) for word in lines[0].split()[2:]]
    rows = [line.split() for line in lines if not line.startswith("#")]
    logits = np.fromfile(folder / f"{name}.logits.f32", dtype="<f4").reshape(-1, VOCAB)
    return Golden(name, prompt, prompt_ids, [int(r[1]) for r in rows], [int(r[2]) for r in rows],
                  [float(r[3]) - float(r[5]) for r in rows], logits,
                  (folder / f"{name}.text.txt").read_text())


def read_goldens() -> list[Golden]:
    lines = (SOURCE / "golden-llama2c" / "prompts.tsv").read_text().splitlines()
    return [read_golden(*line.split("\t")) for line in lines]


def check_logits(g: Golden, model: Path, *options: str) -> bool:
    raw = tarn_test.run_logits(model, g.ids, "--dtype", "f32", "--kv-dtype", "f32", *options)
    ours = np.frombuffer(raw, dtype=np.float32).reshape(g.logits.shape)
    error = float((np.abs(ours - g.logits) / np.abs(g.logits).max(axis=1, keepdims=True)).max())
    best = ours.argmax(axis=1)
    wrong = [pos for pos in range(len(g.ids)) if best[pos] != g.best[pos] and g.gap[pos] > GAP]
    good = error <= TOLERANCE and not wrong
    print(f"{'ok  ' if good else 'FAIL'} {g.name} {' '.join(options):10} {len(g.ids)} positions, "
          f"largest error {error:.2e}, wrong ids at {wrong}")
    return good


def check_text(g: Golden, url: str) -> bool:
    """The golden stops after 200 positions, or where the model ends its story with BOS."""
    n_out = len(g.ids) - len(g.prompt_ids) + 1
    ids = tarn_test.post(url + "/tokenize", {"prompt": g.prompt})["tokens"]
    if ids != g.prompt_ids:
        print(f"FAIL {g.name}: tokenized as {ids}, expected {g.prompt_ids}")
        return False
    reply = tarn_test.post(url + "/v1/completions", {
        "model": "stories", "prompt": g.prompt_ids, "temperature": 0, "max_tokens": n_out,
        "return_token_ids": True})
    choice = reply["choices"][0]
    expected = g.ids[len(g.prompt_ids):] + g.best[-1:]
    if expected[-1] == stories_to_hf.BOS_ID:  # the end of a story: not all servers report its id
        expected.pop()
    good = choice["token_ids"][:len(expected)] == expected
    text = g.prompt + choice["text"] if g.prompt else choice["text"].lstrip(" ")
    same_text = text.rstrip("\n") == g.text.rstrip("\n")
    print(f"{'ok  ' if good and same_text else 'FAIL'} {g.name} {n_out} greedy tokens, "
          f"finish {choice['finish_reason']}")
    if not same_text:
        print(f"  ours   {text!r}\n  golden {g.text!r}")
    return good and same_text


def check_emulated_gpu(goldens: list[Golden]) -> bool:
    """Some logits and texts again, on kernels/cuda without a GPU."""
    with tempfile.TemporaryDirectory() as folder:
        stories_to_hf.convert(SOURCE, Path(folder))
        results = [check_logits(goldens[2], Path(folder), "--device", "cuda"),
                   check_logits(goldens[3], Path(folder), "--device", "cuda", "--chunk", "7")]
        with tarn_test.server(Path(folder), "--served-model-name", "stories", "--device", "cuda",
                              "--dtype", "f32", "--kv-cache-dtype", "f32", "--max-num-seqs", "2",
                              "--kv-device-bytes", "4M", name="tarn-server-emulated") as url:
            results += [check_text(g, url) for g in goldens[:2]]
    return all(results)


def main() -> None:
    goldens = read_goldens()
    if "--emulated-gpu" in sys.argv:
        sys.exit(0 if check_emulated_gpu(goldens) else 1)
    with tempfile.TemporaryDirectory() as folder:
        model, sharded = Path(folder) / "one", Path(folder) / "sharded"
        stories_to_hf.convert(SOURCE, model)
        stories_to_hf.convert(SOURCE, sharded, n_shards=3)
        results = [check_logits(g, model) for g in goldens]
        results += [check_logits(g, sharded, "--chunk", "7") for g in goldens[2:4]]
        with tarn_test.server(model, "--served-model-name", "stories") as url:
            results += [check_text(g, url) for g in goldens]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
