"""On a GPU: Inductor around our kernels, CUDA graphs, and the tuner within its budget."""

import time

import pytest
import torch

import gossamer
from gossamer.fusion.backend import Options
from gossamer.fusion.tuning import tune
from gossamer.masks import Causal, Longformer, Sliding
from gossamer.workloads.transformers_models import build, inputs_of, tokens_of
from tests.fusion.models import NAMES, inputs, made

pytestmark = pytest.mark.gpu
DTYPES = {torch.float16: 2e-2, torch.bfloat16: 1.2e-1}


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    torch._dynamo.reset()
    monkeypatch.setenv("GOSSAMER_CACHE", str(tmp_path))


def moved(given, device="cuda"):
    return {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in given.items()}


def error(got, want):
    return float((got[0].double() - want[0].double()).norm() / want[0].double().norm())


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_models(name, dtype, mode):
    """As the same model on a CPU in float32, call after call."""
    mask = Sliding.symmetric(5)
    model = made(name)
    given = inputs(name)
    want = gossamer.optimize(model, mask, fuse=False, attention=False)(**given)
    on_gpu = type(model)(model.config).eval().requires_grad_(False)
    on_gpu.load_state_dict(model.state_dict())
    optimized = gossamer.optimize(on_gpu.to("cuda", dtype), mask, mode=mode)
    for _ in range(4):
        got = optimized(**moved({k: _cast(v, dtype) for k, v in given.items()}))
        assert error([got[0].cpu()], want) < DTYPES[dtype]


def _cast(value, dtype):
    floats = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.to(dtype) if floats else value


@torch.no_grad()
def test_tuning_keeps_its_budget():
    model = build("bert-base", 512, torch.float16, "cuda")
    given = inputs_of(model, 8, 512)
    mask = Longformer(32, [0])
    started = time.perf_counter()
    (tuned,) = tune(model, (), given, Options(mask=mask), 60.0).graphs
    assert time.perf_counter() - started < 70
    assert tuned.us <= tuned.unfused_us
    optimized = gossamer.optimize(model, mask)
    optimized(**given)
    assert optimized.plans[0].plan == tuned.plan


@torch.no_grad()
def test_llama_is_causal_with_groups():
    model = build("llama-1b", 300, torch.bfloat16, "cuda")
    given = inputs_of(model, 2, 300)
    mask = Longformer(16, [0])
    n = tokens_of(model, 300)
    dense = (mask & Causal()).dense(n, n, "cuda").expand(2, -1, -1, -1)
    want = model.float()(**given, attention_mask=dense)
    got = gossamer.optimize(model.bfloat16(), mask)(**given)
    assert error(got, want) < DTYPES[torch.bfloat16]
