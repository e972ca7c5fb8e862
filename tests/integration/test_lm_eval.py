#!/usr/bin/env python3
"""lm-eval (EleutherAI's lm-evaluation-harness) scores texts against /v1/completions.

The harness's own model class `local-completions` makes the requests and reads the answers. The
scores are compared with those of tests/tools/numpy_llama.py, which shares no code with the engine.
Two things of the harness are left out, since they would bring 900 MB of packages: data sets (the
questions are below) and transformers (the demo model's tokenizer.json goes to the `tokenizers`
package, which transformers would wrap). Skipped where the packages cannot be had (venv_helpers.py).
"""
from __future__ import annotations

import logging
import math
import os
import sys
from typing import Any

from http_helpers import REPO, Server, run_tests, tarn_server, tarn_test
from venv_helpers import use_venv

use_venv("aiohttp", "lm_eval.models.openai_completions", "numpy", "tokenizers")
os.environ["TQDM_DISABLE"] = "1"
import numpy as np  # noqa: E402
from lm_eval.api.instance import Instance  # noqa: E402
from lm_eval.models.openai_completions import LocalCompletionsAPI  # noqa: E402
from numpy_llama import NumpyLlama  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

MODEL = REPO / "deploy" / "demo-model"
CONTEXT = 256
# Of a whole answer's logprob, a few tokens long: test_evaluation.py has those of one.
ERROR_MAX, ERROR_MAX_BF16 = 3e-3, 1.0
# Context, and continuations of which the first is meant to be the right one.
QUESTIONS = [
    ("The capital of the island is", [" Orla", " a", " of of of"]),
    ("The harbour has", [" a crane.", " café 字.", " the the"]),
    ("They grow", [" apples", " ×÷", " is is"]),
    ("The ferry sails on", [" Monday.", " Mon day", " 🙂"]),
    ("I don't", [" know.", " knot", "known"]),
    ("The museum opens at", [" 9", " é", " o'clock o'clock"]),
]
PASSAGE = ("The harbour of Orla has 3 cranes, 12 boats and a café. Its keeper says that the ferry "
           "sails on Monday. ") * 6

SERVER: Server
REFERENCE: NumpyLlama
BOUND: float


class DemoTokenizer:
    """The part of a Hugging Face tokenizer that lm-eval uses."""

    def __init__(self) -> None:
        self.tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
        self.bos_token_id = self.tokenizer.token_to_id("<|bos|>")
        self.eos_token_id = self.tokenizer.token_to_id("<|end|>")
        self.eos_token = "<|end|>"

    def __call__(self, text: Any, add_special_tokens: bool = False, **_: Any) -> Any:
        encode = self.tokenizer.encode
        ids = encode(text, add_special_tokens=add_special_tokens).ids if isinstance(text, str) \
            else [encode(t, add_special_tokens=add_special_tokens).ids for t in text]
        return type("Encoding", (), {"input_ids": ids})

    def batch_decode(self, batch: list[list[int]]) -> list[str]:
        return self.tokenizer.decode_batch(batch, skip_special_tokens=False)


def harness(batch_size: int = 1, num_concurrent: int = 1,
            tokenized_requests: bool = True) -> LocalCompletionsAPI:
    lm = LocalCompletionsAPI(base_url=SERVER.url + "/v1/completions", model="demo",
                             tokenizer_backend="None", batch_size=batch_size,
                             num_concurrent=num_concurrent, max_retries=1, max_length=CONTEXT)
    lm.tokenizer = DemoTokenizer()
    lm.tokenizer_backend = "huggingface"
    lm.tokenized_requests = tokenized_requests
    return lm


def instances(kind: str, arguments: list[tuple[Any, ...]]) -> list[Instance]:
    return [Instance(request_type=kind, doc={}, arguments=a, idx=i)
            for i, a in enumerate(arguments)]


def log_softmax(ids: list[int]) -> np.ndarray:
    logits = REFERENCE.logits(ids)
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def expected(context: list[int], continuation: list[int]) -> tuple[float, bool, float]:
    """Logprob of the continuation, whether greedy decoding gives it, and by how much it does not
    in its nearest token."""
    rows = log_softmax(context + continuation)[len(context) - 1:-1]
    own = rows[np.arange(len(continuation)), continuation]
    gap = float((rows.max(axis=1) - own).max())
    return float(own.sum()), gap == 0, gap


def pairs() -> list[tuple[str, str]]:
    return [(context, choice) for context, choices in QUESTIONS for choice in choices]


def loglikelihoods_are_those_of_the_reference() -> None:
    results = harness().loglikelihood(instances("loglikelihood", pairs()))
    lm = harness()
    wanted = []
    for (context, choice), (got, greedy) in zip(pairs(), results):
        want, is_greedy, gap = expected(*lm._encode_pair(context, choice))
        wanted.append(want)
        assert abs(got - want) <= BOUND, (context, choice, got, want)
        assert greedy == is_greedy or gap < BOUND, (context, choice, gap)
    print(f"      {len(results)} continuations, off by "
          f"{max(abs(g - w) for (g, _), w in zip(results, wanted)):.1e} at most; "
          f"{sum(greedy for _, greedy in results)} are greedy")
    # An accuracy counts the choices with the best score.
    for i in range(0, len(results), 3):
        ours = [r[0] for r in results[i:i + 3]]
        assert ours.index(max(ours)) == int(np.argmax(wanted[i:i + 3])) or \
            sorted(wanted[i:i + 3])[2] - sorted(wanted[i:i + 3])[1] < 2 * BOUND


def a_greedy_continuation_is_known_as_one() -> None:
    texts = [c for c, _ in QUESTIONS]
    lm = harness()
    answers = lm.generate_until(instances("generate_until", [
        (text, {"until": ["\n"], "max_gen_toks": 8, "temperature": 0}) for text in texts]))
    assert all(isinstance(a, str) and "\n" not in a for a in answers), answers
    follow = [(t, a) for t, a in zip(texts, answers) if a]
    assert len(follow) >= 3, answers
    n_greedy = 0
    for (text, answer), (_, greedy) in zip(follow, lm.loglikelihood(
            instances("loglikelihood", follow))):
        n_greedy += greedy
        assert greedy or expected(*lm._encode_pair(text, answer))[2] > 0, (text, answer)
    assert n_greedy >= 3  # the text may be cut into other tokens than those that came


def batches_and_concurrency_change_nothing() -> None:
    alone = harness().loglikelihood(instances("loglikelihood", pairs()))
    for options in ({"batch_size": 7}, {"num_concurrent": 4}, {"batch_size": 4,
                                                               "num_concurrent": 3}):
        assert harness(**options).loglikelihood(instances("loglikelihood", pairs())) == alone


def a_passage_longer_than_the_context_is_scored_in_windows() -> None:
    """The harness's windows for perplexity: each has the end of the one before as its context."""
    lm = harness()
    got = lm.loglikelihood_rolling(instances("loglikelihood_rolling", [(PASSAGE,)]))[0]
    ids = lm.tok_encode(PASSAGE)
    assert len(ids) > CONTEXT
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
    want = math.fsum(expected(*window)[0] for window in map(make_disjoint_window,
        get_rolling_token_windows(token_list=ids, prefix_token=lm.prefix_token_id,
                                  max_seq_len=lm.max_length - 1, context_len=1)))
    print(f"      {len(ids)} tokens, logprob {got:.3f}, reference {want:.3f}")
    assert abs(got - want) <= BOUND * math.sqrt(len(ids))


def main() -> int:
    global SERVER, REFERENCE, BOUND
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    kernels = tarn_test.run_logits_and_kernels(MODEL, [9, 10])[1]
    REFERENCE = NumpyLlama.load(MODEL, "f32", kernels)
    BOUND = ERROR_MAX_BF16 if REFERENCE.products_in_bf16 else ERROR_MAX
    with tarn_server(MODEL, "--no-profile-cost", "--kv-cache-dtype", "f32", "--max-model-len",
                     str(CONTEXT), "--served-model-name", "demo") as SERVER:
        return run_tests([loglikelihoods_are_those_of_the_reference,
                          a_greedy_continuation_is_known_as_one,
                          batches_and_concurrency_change_nothing,
                          a_passage_longer_than_the_context_is_scored_in_windows])


if __name__ == "__main__":
    sys.exit(main())
