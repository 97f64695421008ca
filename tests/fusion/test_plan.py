"""Plans, their keys, and what they are decoded to: whatever the plan, the result is the same."""

import functools
import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from gossamer.fusion.capture import capture
from gossamer.fusion.kernels import fusion_of
from gossamer.fusion.legality import Limits, why_illegal
from gossamer.fusion.operators import Attention, Gemm, Norm
from gossamer.fusion.plan import Plan
from gossamer.fusion.program import program_of
from gossamer.fusion.tuning import record
from gossamer.masks import Sliding
from tests.fusion.models import inputs, made


@st.composite
def plans(draw):
    operators = draw(st.integers(0, 200))
    return Plan(operators, draw(st.integers(0, (1 << max(0, operators - 1)) - 1)))


@given(plans())
def test_key_and_back(plan):
    assert Plan.decode(plan.key, plan.operators) == plan
    assert Plan.of_segments(plan.segments) == plan
    assert [i for segment in plan.segments for i in segment] == list(range(plan.operators))


@given(st.integers(1, 12))
def test_keys_are_bijective(operators):
    keys = {Plan(operators, cuts).key for cuts in range(1 << (operators - 1))}
    assert keys == {f"{number:x}" for number in range(1 << (operators - 1), 1 << operators)}


@pytest.mark.parametrize("key", ["", "zz", "3", "8", "0x6", "-6", "06", None])
def test_bad_keys(key):
    with pytest.raises(ValueError, match=r"must be a hex number of 3 bits, for 3 operators"):
        Plan.decode(key, 3)


def test_bad_cuts():
    with pytest.raises(ValueError, match=r"cuts are 0x4; must be 0 to 0x3"):
        Plan(3, 4)


@pytest.fixture(scope="module", params=["bert", "gpt2", "t5-gated"])
def graph(request):
    """A model's graph, its inputs and what it returns."""
    torch._dynamo.reset()
    ((module, given_inputs),) = record(made(request.param), (), inputs(request.param))
    with torch.no_grad():
        return module, given_inputs, module(*given_inputs)


def run(graph, plan):
    module, given_inputs, _ = graph
    program = program_of(capture(module, given_inputs), plan)
    with torch.no_grad():
        return program, program.module(*given_inputs)


def test_every_plan_gives_the_same(graph):
    """Random plans, most of which are partly illegal, and all plans of one fused segment."""
    count = len(capture(*graph[:2]).operators)
    generator = random.Random(torch.initial_seed())
    tried = {generator.getrandbits(count - 1) for _ in range(25)} | {0}
    for start in range(count - 1):  # every run of up to 5, the others apart
        for stop in range(start + 2, min(start + 5, count) + 1):
            joined = sum(1 << i for i in range(start, stop - 1))
            tried.add(((1 << (count - 1)) - 1) ^ joined)
    kernels = set()
    for cuts in tried:
        program, got = run(graph, Plan(count, cuts))
        kernels |= {step.kernel for step in program.steps}
        for g, w in zip(got, graph[2], strict=True):
            torch.testing.assert_close(g, w, rtol=1e-4, atol=2e-5)
    assert {"linear_norm", "unfused"} <= kernels
    assert kernels & {"gemm_chain", "gated_mlp"}


class Layer(nn.Module):
    """Attention, residual, norm and an MLP, as small as kernels take them."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(64, 64) for _ in range(4))
        self.norm = nn.LayerNorm(64)
        self.up, self.down = nn.Linear(64, 128), nn.Linear(128, 64)

    def forward(self, x):
        def heads(y):
            return y.view(*x.shape[:2], 2, 32).transpose(1, 2)

        q, k, v = heads(self.q(x)), heads(self.k(x)), heads(self.v(x))
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        h = self.norm(x + self.out(seen.transpose(1, 2).reshape(x.shape)))
        return self.down(nn.functional.gelu(self.up(h)))


def test_all_legal_plans_of_a_layer():
    """Each of them, not a sample."""
    torch._dynamo.reset()
    model, x = Layer().eval().requires_grad_(False), torch.randn(2, 16, 64)
    with torch.no_grad():
        ((module, given_inputs),) = record(model, (x,), {})
        want = model(x)
    captured = capture(module, given_inputs)
    count, legal = len(captured.operators), 0
    fits = functools.cache(
        lambda part: (
            why_illegal(captured.operators[part.start : part.stop], captured.limits) is None
        )
    )
    kernels = set()
    for cuts in range(1 << (count - 1)):
        plan = Plan(count, cuts)
        if all(map(fits, plan.segments)):
            program = program_of(capture(module, given_inputs), plan)
            with torch.no_grad():
                (got,) = program.module(*given_inputs)
            torch.testing.assert_close(got, want, rtol=1e-4, atol=2e-5)
            kernels |= {step.kernel for step in program.steps}
            legal += 1
    assert legal >= 100
    assert {"linear", "linear_act", "linear_norm", "gemm_chain", "unfused"} <= kernels


def test_legality(graph):
    captured = capture(*graph[:2])
    operators = captured.operators
    place = next(i for i, each in enumerate(operators) if isinstance(each, Attention))
    assert "segment of its own" in why_illegal(operators[place - 1 : place + 1], captured.limits)
    gemms = [each for each in operators if isinstance(each, Gemm)]
    different = list({each.x: each for each in gemms}.values())[:3]
    assert "3 GEMMs of different inputs; must be at most 2" in why_illegal(
        different, captured.limits
    )
    norm = next(i for i, each in enumerate(operators) if isinstance(each, Norm) and i > 1)
    segment = operators[norm - 2 : norm + 1]
    assert why_illegal(segment, captured.limits) is None
    assert fusion_of(segment).op == "linear_norm"
    assert "bytes of shared memory; there are 64" in why_illegal(segment, Limits(64))


def test_explain_names_segments_and_times(graph):
    module, given_inputs, _ = graph
    captured = capture(module, given_inputs, Sliding(3, 3))
    program = program_of(captured, Plan.unfused(len(captured.operators)))
    text = program.explain()
    assert program.plan.key in text
    assert "Sliding(before=3, after=3)" in text
    assert "us" in text and "unfused" in text  # noqa: PT018


def test_explain_has_measured_times(graph):
    """Of the segments that the tuner timed, and of no other."""
    module, given_inputs, _ = graph
    captured = capture(module, given_inputs)
    plan = replace(Plan.unfused(len(captured.operators)), measured={0: 1234.5, 2: 0.25})
    text = program_of(captured, plan).explain()
    header, *rows = text.splitlines()[1:]
    assert header.split() == [
        "times",
        "operators",
        "result",
        "kernel",
        "predicted",
        "measured",
        "why",
    ]
    at = header.index("measured")
    told = [row[at:].split("  ")[0].strip() for row in rows if row[:1].isdigit()]
    assert [each for each in told if each != "-"] == ["1234.5 us", "0.2 us"]
