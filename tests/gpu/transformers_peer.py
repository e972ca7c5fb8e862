"""Measure the continuous batching of the library transformers, for comparison with the server.

    transformers_peer.py MODEL [--seconds 22]

MODEL is a folder with a config.json; the weights are random, in bf16. The 16 prompts are those of
ask.py; all are answered together, once with few and once with many tokens each. The last line is
the difference of both times, divided by that of the tokens of a request, so that the start and the
prompts do not count. If PyTorch or transformers is not installed, finds no GPU, fails or takes
longer than --seconds, the script says so and ends with 0.
"""
from __future__ import annotations

import argparse
import os
import threading
import time

from ask import prompts

N_REQUESTS = 16
FEW, MANY = 16, 272


def load(torch, transformers, folder: str):
    config = transformers.AutoConfig.from_pretrained(folder)
    torch.manual_seed(1)
    with torch.device("cuda"):
        model = transformers.AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16, attn_implementation="sdpa")
    return model.eval()


def seconds(torch, transformers, model, n_tokens: int) -> float:
    """Answer all requests with n_tokens each."""
    config = transformers.GenerationConfig(max_new_tokens=n_tokens, do_sample=False,
                                           eos_token_id=-1, pad_token_id=0)
    began = time.monotonic()
    with torch.inference_mode():
        answers = model.generate_batch(prompts(N_REQUESTS), generation_config=config,
                                       progress_bar=False)
    took = time.monotonic() - began
    counts = sorted(len(a.generated_tokens) for a in answers.values())
    if counts != [n_tokens] * N_REQUESTS:
        raise RuntimeError(f"answers of {counts} tokens, {n_tokens} were wanted")
    return took


def measure(torch, transformers, folder: str) -> None:
    model = load(torch, transformers, folder)
    seconds(torch, transformers, model, FEW)  # allocates, compiles
    few, many = (min(seconds(torch, transformers, model, n) for _ in range(2))
                 for n in (FEW, MANY))
    print(f"between tokens: {1e6 * (many - few) / (MANY - FEW):.1f} us, {N_REQUESTS} requests, "
          f"{few:.2f} s for {FEW} tokens each, {many:.2f} s for {MANY}")


def give_up() -> None:
    print("transformers took too long", flush=True)
    os._exit(0)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--seconds", type=float, default=22)
    args = parser.parse_args()
    timer = threading.Timer(args.seconds, give_up)
    timer.daemon = True
    timer.start()
    try:
        import torch
        import transformers
    except ImportError as error:
        print(f"{error.name} is not installed here: nothing to compare with")
        return 0
    if not torch.cuda.is_available():
        print("PyTorch sees no GPU: nothing to compare with")
        return 0
    print(f"PyTorch {torch.__version__}, transformers {transformers.__version__}")
    try:
        measure(torch, transformers, args.model)
    except Exception as error:  # the peer's failure is none of ours
        print(f"transformers: {type(error).__name__}: {error}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
