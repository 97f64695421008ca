"""A GPU of round numbers, and Llama 3 8B's shape."""

from functools import cache
from pathlib import Path

import torch

from gossamer.kv import KVConfig
from gossamer.models import ModelConfig, open_model
from gossamer.planning.fleet import Demand
from gossamer.planning.gpu import (
    GPU,
    Curve,
    DataSheet,
    DecodeCurve,
    EngineFacts,
    layout_of,
    load_gpu,
)
from gossamer.planning.step import StepModel
from gossamer.planning.traffic import Traffic

BF16 = torch.bfloat16
CODED = "k=coded:8x16+4x80+2x32@row,v=coded:4x32+3x64+2x32@row"
MODELS = Path(__file__).parents[2] / "benchmarks/models"


@cache
def config(name: str = "llama-3-8b") -> ModelConfig:
    return open_model(MODELS / name, random_weights=True).config


def kv(spec: str) -> KVConfig:
    return KVConfig.of(spec, BF16)


def round_gpu() -> GPU:
    """1 s for 10^9 weights and 1 ms a row more; 1 us and 1 ns a KB for decode attention."""
    curve = Curve((0.0, 1e9), (1e-6, 1e-6 + 1e-3))
    decode = tuple(
        DecodeCurve(layout_of(kv(spec), 128), 128, row, curve)
        for spec, row in (("dense", 512.0), (CODED, 116.0))
    )
    return GPU(
        name="Round",
        sheet=DataSheet(memory=100e9, bandwidth=1e12, flops=1e15, link=1e11),
        copy=1e12,
        gemm=Curve((0.0, 1000.0), (1.0, 2.0)),
        decode=decode,
        engine=EngineFacts(
            revision="abc",
            fitted="",
            prompt_flops=1e15,
            layer_seconds=1e-5,
            item_seconds=1e-6,
            token_seconds=1e-4,
        ),
    )


def step_model(spec: str = "dense", ranks: int = 1, on: GPU | None = None) -> StepModel:
    return StepModel(on or load_gpu("h200"), config(), kv(spec), BF16, ranks)


def demand(prompt: int = 2000, output: int = 256, rate: float = 50.0, **more) -> Demand:
    given = {"gpu": load_gpu("h200"), "model": config(), "dtype": BF16, **more}
    return Demand(traffic=Traffic(prompt, output), rate=rate, **given)
