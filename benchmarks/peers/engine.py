"""Hugging Face transformers as a peer of the engine: the same weights, its own `generate`."""

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from gossamer.bench import Measurement, Record
from gossamer.bench.suite import PeerUnavailableError
from gossamer.integrations.transformers import load_model
from gossamer.models import EMBEDDED, Source, open_model
from gossamer.models.embedded import embedded_path
from gossamer.workloads.records import timing

SKIPPED = 4  # steps: the first ones compile and capture
MODES = {"transformers": None, "transformers static": "static"}


@dataclass(frozen=True)
class Generated:
    """Seconds of the first token, of each later one, and all new tokens [batch, new]."""

    first: float
    steps: list[float]
    tokens: list[list[int]]


def peer_model(name: str, dtype: torch.dtype, device: str, *, random_weights: bool) -> Any:
    """The model in transformers, with the weights that the engine has under the same name."""
    path = embedded_path(name) if name in EMBEDDED else Path(name)
    if not random_weights:
        model, _ = load_model(path, dtype=dtype, device=device)
    else:
        model = _random_model(open_model(name, random_weights=True), path, dtype, device)
    model.generation_config.eos_token_id = None  # run to the end, as the engine does
    model.generation_config.pad_token_id = 0
    return model


def _random_model(source: Source, path: Path, dtype: torch.dtype, device: str) -> Any:
    auto: Any = transformers.AutoModelForCausalLM
    config = transformers.AutoConfig.from_pretrained(str(path), local_files_only=True)
    with torch.device("meta"):
        model = auto.from_config(config, dtype=dtype)
    weights = dict(source.tensors(dtype=dtype, device=device))
    model.load_state_dict(weights, strict=False, assign=True)
    model.tie_weights()
    # What is computed from the config and not in any file: cosines and sines are made anew.
    model.model.rotary_emb = type(model.model.rotary_emb)(config).to(device)
    missing = [n for n, p in model.named_parameters() if p.is_meta]
    assert not missing, f"no weights for {missing}"
    return model.eval()


class _Clock(transformers.StoppingCriteria):
    """Called after every token: notes the time, and stops nothing."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.times = [self._now()]

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()

    def __call__(self, input_ids: Tensor, scores: Tensor, **_: Any) -> Tensor:
        self.times.append(self._now())
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


def generate(model: Any, prompts: list[list[int]], new: int, mode: str) -> Generated:
    """Greedy tokens by `model.generate`. PeerUnavailableError where the mode does not work."""
    ids = torch.tensor(prompts, device=model.device)
    clock = _Clock(model.device)
    try:
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new,
            do_sample=False,
            cache_implementation=MODES[mode],
            stopping_criteria=transformers.StoppingCriteriaList([clock]),
        )
    except Exception as error:  # torch.compile fails in many ways; one line says how
        line = next(iter(str(error).strip().splitlines()), "")
        raise PeerUnavailableError(f"{type(error).__name__}: {line}") from error
    steps = [b - a for a, b in zip(clock.times[1:], clock.times[2:], strict=False)]
    first = clock.times[1] - clock.times[0]
    return Generated(first, steps, out[:, ids.shape[1] :].tolist())


def peer_record(ours: Record, mode: str, found: Generated, dtype: torch.dtype) -> Record:
    """At the point of `ours`: the same bytes to read, so shares of the ceiling compare."""
    steps = found.steps[min(SKIPPED, len(found.steps) // 2) :]
    record = Record.of(
        Measurement(timing(steps), 0.0, 0.0),
        op=ours.op,
        backend=mode,
        shape=ours.shape,
        dtype=dtype,
        variant=ours.variant,
        bytes=ours.bytes,
        flops=ours.flops,
        ceiling_gbps=ours.ceiling_gbps,
        device="cpu",
        facts={"tokens_per_second": ours.shape[0] * len(steps) / sum(steps)},
    )
    versions = {**record.versions, "transformers": transformers.__version__}
    return replace(record, device=ours.device, versions=versions)
