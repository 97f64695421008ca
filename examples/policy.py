"""A KV policy of your own, in the engine: which entries of K a sparse cache keeps.

    python examples/policy.py

A policy turns rows [tokens, heads, head_dim] into a `Ranking`; packing keeps the entries that rank
highest. `LastHalf` prefers channels of the second half, the ones that RoPE turns slowly in models
that rotate halves; registered in POLICIES it is a word of every cache spec.
"""

import torch
from torch import Tensor

from gossamer.engine import LLM, SamplingParams
from gossamer.kv.policies import POLICIES, Policy, Ranking

PROMPT = "The lighthouse keeper climbed the stairs and looked at the sea. " * 12
WORTH = 4.0  # of an entry in the second half


class LastHalf(Policy):
    """Rank by |x|, entries of the second half of the channels WORTH times as high."""

    name = "last_half"

    def rank(self, x: Tensor, weights: Tensor | None) -> Ranking:
        worth = torch.ones(x.shape[1:], device=x.device)
        worth[:, x.shape[2] // 2 :] = WORTH
        return Ranking(weights=worth)


def main() -> None:
    """Print how likely a model finds a prompt over caches that keep 16 of 64 entries of K."""
    POLICIES[LastHalf.name] = LastHalf()
    for name in ("magnitude", "weighted", LastHalf.name):
        with LLM("smollm2", kv=f"sparse:k=16,v=64,k_policy={name},window=0") as llm:
            params = SamplingParams(max_tokens=1, prompt_logprobs=True)
            scores = llm.generate(PROMPT, params)[0].prompt_logprobs
            known = [score for score in scores if score is not None]
        print(f"{name}: {-sum(known) / len(known):.3f} nats per token")


if __name__ == "__main__":
    main()
