"""The engine's perplexity is that of teacher forcing, in prefill and in decode."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from gossamer.engine import SamplingParams
from gossamer.evaluation.perplexity import Perplexity
from gossamer.evaluation.subject import EngineSubject
from gossamer.integrations.transformers import attention_function, causal_attention, load_model
from gossamer.kv.calibration import Calibration
from gossamer.kv.config import KVConfig
from gossamer.models import open_model
from tests.engine.serving import need_smollm2
from tests.evaluation.fakes import run
from tests.evaluation.teacher_forced import PackedAttention, token_nll

TOKENS, HEADS, GROUP, HEAD_DIM = 128, 2, 3, 64


def random_calibration() -> SimpleNamespace:
    bases = torch.linalg.qr(torch.randn(2, 1, HEADS, HEAD_DIM, HEAD_DIM))[0]
    weights = torch.rand(1, HEADS, HEAD_DIM)
    return SimpleNamespace(k_basis=bases[0], v_basis=bases[1], rank_weights=lambda k: weights)


def attend(spec: str) -> tuple[torch.Tensor, torch.Tensor]:
    q = torch.randn(1, HEADS * GROUP, TOKENS, HEAD_DIM)
    k, v = torch.randn(2, 1, HEADS, TOKENS, HEAD_DIM)
    packed = PackedAttention(KVConfig.parse(spec), random_calibration())
    return packed(0, q, k, v, 0.125), causal_attention(0, q, k, v, 0.125)


@pytest.mark.parametrize("bases", ["", ",basis=pca"])
@pytest.mark.parametrize(
    "spec",
    [
        "dense:fp32,window=0",
        "k=sparse:64:fp32,v=sparse:64:fp32,window=0",
        "k=sparse:64:fp32,v=dense:fp32,window=32,k_policy=weighted",
        "sparse:k=1,v=1,window=128",  # everything is near
    ],
)
def test_what_loses_nothing_changes_nothing(spec, bases):
    got, want = attend(spec + bases)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_pruning_changes_only_what_is_far():
    """The first block and the window see everything dense; later queries do not."""
    got, want = attend("sparse:k=8,v=8,window=32")
    torch.testing.assert_close(got[:, :, :64], want[:, :, :64], rtol=1e-4, atol=1e-5)
    assert (got[:, :, 64:] - want[:, :, 64:]).abs().max() > 0.01


TEXT = Path("benchmarks/data/wikitext2-test-excerpt.txt")
CONTEXT = 384


@pytest.fixture(scope="module")
def forced():
    """Mean NLL of two windows by transformers, for a spec."""
    model, tokenizer = load_model(need_smollm2())
    ids = tokenizer(TEXT.read_text(), return_tensors="pt").input_ids[0, : 2 * CONTEXT]
    calibration = Calibration.load(open_model("smollm2").calibration)

    def nll(spec):
        packed = PackedAttention(KVConfig.parse(spec, dense="fp32"), calibration)
        with attention_function(model, packed):
            return token_nll(model, ids, CONTEXT).double().mean().item()

    return nll


@pytest.mark.parametrize(
    "spec",
    [
        "dense",
        "sparse:k=32,v=32,values=fp32",
        "sparse:k=19,v=19,values=fp32,basis=pca,k_policy=weighted,window=64",
        # V not in a basis: folding rounds otherwise, and a code of 3 bits on an edge is a big step
        "k=sparse:32:int4@channel,v=sparse:24:int3,k_policy=gradient,sink=32",
        "k=dense:int4@channel,v=dense:int4@group",
    ],
)
def test_of_smollm2(forced, spec):
    """The engine computes windows in chunks of 100 tokens, and continues a text by decoding."""
    task = Perplexity.of_file(TEXT, tokens=2 * CONTEXT, context=CONTEXT)
    options = {"kv_memory": "200MB", "max_num_batched_tokens": 100, "max_model_len": 512}
    options["weights"] = "float"  # as transformers has them; projections in a basis of V too
    with EngineSubject("smollm2", spec, **options) as subject:
        scores = run(task, subject).values()
        got = sum(s.value for s in scores) / sum(s.weight for s in scores)
        # A code of 4 bits on an edge moves the mean by up to 1e-4, either way, with the rounding of
        # attention: -1.1e-4 by masked_attention, +0.5e-4 by SDPA. Without codes they agree to 2e-6.
        assert got == pytest.approx(forced(spec), abs=2e-4 if "int" in spec else 5e-5)

        prompt = task.windows(subject.tokenizer)[0][:200]
        greedy = SamplingParams(temperature=0, max_tokens=60, logprobs=0, ignore_eos=True)
        (output,) = subject.llm.generate([prompt], greedy)
        written = output.outputs[0]
        decoded = [chosen.logprob for chosen in written.logprobs]
        (prefilled,) = subject.loglikelihood([[*prompt, *written.token_ids]])
        torch.testing.assert_close(
            torch.tensor(decoded).mean(), torch.tensor(prefilled[-60:]).mean(), rtol=0, atol=1e-4
        )
