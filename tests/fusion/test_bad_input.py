"""What cannot be fused is right all the same, with a line that says why; training is refused."""

import logging

import pytest
import torch
from torch import nn

import gossamer
from gossamer.fusion import Options
from gossamer.masks import Causal, Sliding, per_head
from tests.fusion.models import inputs, made


@pytest.fixture(autouse=True)
def fresh(caplog):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    caplog.set_level(logging.WARNING, "gossamer.fusion")


def lines(caplog):
    return [r.getMessage() for r in caplog.records if r.name == "gossamer.fusion"]


class Block(nn.Module):
    def __init__(self, dtype=torch.float32, dropout=0.0):
        super().__init__()
        self.up = nn.Linear(32, 64, dtype=dtype)
        self.down = nn.Linear(64, 32, dtype=dtype)
        self.norm = nn.LayerNorm(32, dtype=dtype)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, stop=False):
        h = torch.nn.functional.gelu(self.up(x))
        if stop:
            torch._dynamo.graph_break()
        return self.norm(x + self.dropout(self.down(h)))


def compiled(block, **options):
    return torch.compile(block, backend="gossamer", **options)


@torch.no_grad()
def test_backend_by_name():
    block, x = Block().eval(), torch.randn(3, 32)
    torch.testing.assert_close(compiled(block)(x), block(x))


@torch.no_grad()
def test_graph_breaks(caplog):
    block, x = Block().eval(), torch.randn(3, 32)
    torch.testing.assert_close(compiled(block)(x, stop=True), block(x))
    assert [line for line in lines(caplog) if "the graph breaks" in line]


@torch.no_grad()
def test_dynamic_shapes(caplog):
    block = Block().eval()
    run = compiled(block, dynamic=True, options={"remainder": "eager"})
    for rows in (3, 5, 8):
        x = torch.randn(rows, 32)
        torch.testing.assert_close(run(x), block(x))
    assert lines(caplog) == [
        "nothing is fused: its shapes are dynamic; compile with dynamic=False to fuse it"
    ]


@torch.no_grad()
def test_unsupported_dtype(caplog):
    block, x = Block(torch.float64).eval(), torch.randn(3, 32, dtype=torch.float64)
    torch.testing.assert_close(compiled(block)(x), block(x))
    (line,) = lines(caplog)
    assert "its dtype is torch.float64; fused operators take float32, 16 bits" in line


@torch.no_grad()
def test_autocast(caplog):
    block, x = Block().eval(), torch.randn(3, 32)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(compiled(block)(x), block(x))
    assert "autocast is on" in lines(caplog)[0]


@torch.no_grad()
def test_module_without_operators(caplog):
    model = nn.Sequential(nn.Conv1d(3, 4, 3), nn.Tanh()).eval()
    x = torch.randn(2, 3, 9)
    run = compiled(model)
    for _ in range(2):
        torch.testing.assert_close(run(x), model(x))
    assert lines(caplog) == [
        "nothing is fused: no attention, GEMM, activation or norm of the graph is recognised"
    ]


def test_training_is_refused():
    block = Block(dropout=0.5)
    with pytest.raises(RuntimeError, match=r"training mode \(dropout is on\); call model.eval\(\)"):
        compiled(block.requires_grad_(False))(torch.randn(3, 32))
    with pytest.raises(RuntimeError, match=r"is for inference; call model.eval\(\) first"):
        gossamer.optimize(block.train())(torch.randn(3, 32))


def test_gradients_are_refused():
    block = Block().eval()
    for run in (compiled(block), gossamer.optimize(block)):
        with pytest.raises(RuntimeError, match="gradients are recorded; call the model under"):
            run(torch.randn(3, 32))


def test_bad_options():
    with pytest.raises(ValueError, match=r"option is 'msk'; must be one of mask, attention"):
        gossamer.optimize(Block(), msk=Causal())
    with pytest.raises(TypeError, match=r"mask is str; must be a gossamer.masks.Mask or a bool"):
        gossamer.optimize(Block(), "causal")
    with pytest.raises(TypeError, match=r"model is function; must be a torch.nn.Module"):
        gossamer.optimize(test_bad_options)
    with pytest.raises(ValueError, match=r"remainder is 'xla'; must be one of auto, inductor"):
        Options(remainder="xla")
    with pytest.raises(ValueError, match=r"tune is -1; must be above 0 seconds"):
        gossamer.optimize(Block(), tune=-1)


@torch.no_grad()
def test_masks_that_do_not_fit():
    model, given = made("bert"), inputs("bert")
    with pytest.raises(RuntimeError, match=r"mask is for heads 3; must be 2, which the model's"):
        gossamer.optimize(model, per_head([Causal()] * 3))(**given)
    with pytest.raises(RuntimeError, match=r"DenseMask: q_len and kv_len are 24 and 24; must be 8"):
        gossamer.optimize(model, torch.ones(8, 8, dtype=torch.bool))(**given)
    with pytest.raises(ValueError, match="no attention was found in the model"):
        gossamer.optimize(Block().eval(), Causal())(torch.randn(3, 32))


class OwnAttention(nn.Module):
    """Softmax over other things than scores of queries and keys."""

    def forward(self, x):
        return torch.softmax(x @ x.transpose(2, 3) * x.abs().sum(), -1) @ x


@torch.no_grad()
def test_attention_of_another_form_gets_no_mask_in_silence():
    with pytest.raises(RuntimeError, match="looks like attention of another form"):
        gossamer.optimize(OwnAttention().eval(), Sliding(2, 2))(torch.randn(1, 2, 16, 32))


@torch.no_grad()
def test_many_shapes():
    """Each is compiled, beyond Dynamo's own limit of 8."""
    block = Block().eval()
    run = gossamer.optimize(block)
    for rows in range(2, 13):
        x = torch.randn(rows, 32)
        torch.testing.assert_close(run(x), block(x))
    assert len(run.plans) == 11
