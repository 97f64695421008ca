"""A step's time, against arithmetic by hand on a GPU of round numbers."""

import math

import pytest
import torch

from gossamer.models.layout import tensor_shapes
from gossamer.planning.step import LINK_SECONDS, StepModel, Work
from tests.planning.given import BF16, CODED, config, kv, round_gpu, step_model

LAYERS = 32
# q, k, v, o of 4,096 and the MLP of 14,336, with two norms.
LAYER = 4096 * (4096 + 2 * 1024 + 4096 + 3 * 14336) + 2 * 4096
HEAD = 128256 * 4096


def test_a_decode_step_of_a_dense_cache():
    time = step_model(on=round_gpu()).time(Work(decoding=100, context=5000))
    assert time.weights == pytest.approx((LAYERS * LAYER + HEAD) / 1e9 * 1.1)
    assert time.kv == pytest.approx(LAYERS * (1e-6 + 5000 * 8 * 512 / 1e12))
    assert time.between == pytest.approx(LAYERS * 1e-5)
    assert (time.prompts, time.links) == (0, 0)
    assert time.host == pytest.approx(100 * 1e-4)
    assert time.total == time.gpu > time.host
    assert sum(time.parts.values()) == pytest.approx(time.total)


def test_windows_and_sinks_are_read_dense():
    work = Work(decoding=10, context=20000)
    time = step_model(CODED, on=round_gpu()).time(work)
    near = 10 * (32 + 32 + 16)  # window, sink, and half of the own block
    rows = (20000 - near) * 8 * (58 + 58), near * 8 * 512
    assert kv(CODED).bytes_per_token(config().kv_shape) == LAYERS * 8 * 116
    by_hand = 1e-6 + rows[0] / 1e12 + rows[1] / 1e12 + 10 * 8 * 1e-6
    assert time.kv == pytest.approx(LAYERS * by_hand)


def test_prompts_take_gemms_and_pairs():
    model = step_model(on=round_gpu())
    time = model.time(Work(decoding=0, context=0, prompt=4000, pairs=8e6, ending=2))
    # 5 s for 10^9 weights at 4,000 rows, more than 2 * 4,000 / 1e15 * 1e9 at the rate of prompts.
    assert time.weights == pytest.approx(LAYERS * LAYER / 1e9 * 5 + HEAD / 1e9 * 1.002)
    assert time.prompts == pytest.approx(LAYERS * 4 * 32 * 128 * 8e6 / 1e15)
    assert (time.kv, time.host) == (0, 0)


def test_ranks_share_weights_and_heads_and_send():
    one, two = (step_model(ranks=n, on=round_gpu()) for n in (1, 2))
    work = Work(decoding=100, context=5000)
    time = two.time(work)
    assert time.weights == pytest.approx((LAYERS * LAYER / 2 + HEAD) / 1e9 * 1.1)
    assert time.kv == pytest.approx(LAYERS * (1e-6 + 5000 * 4 * 512 / 1e12))
    assert time.links == pytest.approx(LAYERS * 2 * (LINK_SECONDS + 100 * 4096 * 2 / 1e11))
    assert time.total == time.gpu + time.host  # nothing is scheduled ahead for several ranks
    assert one.weight_bytes - two.weight_bytes == LAYERS * LAYER


def test_more_ranks_than_kv_heads_have_one_each():
    """K and V of 8 heads are on 16 ranks twice."""
    time = step_model(ranks=16, on=round_gpu()).time(Work(decoding=100, context=5000))
    kv_weights = 2 * 4096 * 1024
    layer = (LAYER - kv_weights) / 16 + kv_weights / 8
    assert time.weights == pytest.approx((LAYERS * layer + HEAD) / 1e9 * 1.1)
    eight, sixteen = (step_model(ranks=n, on=round_gpu()).weight_bytes for n in (8, 16))
    assert eight - sixteen == LAYERS * (LAYER - kv_weights) / 8


@pytest.mark.parametrize("name", ["llama-3-8b", "llama-3-70b", "llama-135m"])
def test_weights_are_those_of_the_model(name):
    shapes = tensor_shapes(config(name)).values()
    model = StepModel(round_gpu(), config(name), kv("dense"), BF16)
    norm = config(name).hidden_size
    assert model.weight_bytes == 2 * (sum(map(math.prod, shapes)) - norm)


def test_what_cannot_be_planned():
    with pytest.raises(ValueError, match="must be float16 or bfloat16"):
        StepModel(round_gpu(), config(), kv("dense"), torch.float32)
    with pytest.raises(ValueError, match="must be one of 1, 2, 4, 8, 16, 32"):
        step_model(ranks=3)
    with pytest.raises(ValueError, match="nothing was measured on Round"):
        step_model("sparse:k=40,v=40", on=round_gpu())
