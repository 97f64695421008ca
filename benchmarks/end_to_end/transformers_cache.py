"""`generate` of transformers with its DynamicCache and with a SparseCache: memory and speed.

On a GPU with the dimensions of Llama 3 8B and random weights; on a CPU with a tiny model, to see
that it runs. Logits are compared with those of the same weights in float32 on the CPU first.
"""

import copy
import gc
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import torch
import transformers
import typer
from torch import Tensor

from benchmarks.peers.engine import peer_model
from gossamer.bench import Measurement, Record, WrongResultError, copy_bandwidth
from gossamer.bench.record import device_folder, write_records
from gossamer.bench.suite import RESULTS
from gossamer.integrations.transformers import SparseCache, use_gossamer
from gossamer.workloads.records import timing

MODEL = "benchmarks/models/llama-3-8b"
SPECS = (
    "dense",
    "sparse:k=64,v=40",
    "sparse:k=64,v=40,values=int8",
    "k=dense:int4@channel,v=sparse:40:int4",
)
DYNAMIC = "transformers DynamicCache"
SKIPPED = 4  # steps: the first ones compile and grow pools
# Of logits over two layers. In bfloat16, rounding decides between entries that are nearly equal:
# by estimate one in 600 of random keys is so close to the last one kept, which moves a row by 4%.
LARGEST_ERROR = {torch.float32: (1e-3, 1e-2), torch.bfloat16: (0.02, 0.15)}  # dense, sparse


@dataclass(frozen=True)
class Workload:
    """rows of `prompt` random tokens, `new` ones for each."""

    rows: int
    prompt: int
    new: int


@dataclass(frozen=True)
class Run:
    """Seconds of prefill and of each later token, and bytes: at the peak, and of the cache."""

    prefill: float
    steps: list[float]
    peak: int
    cache: int


class Clock(transformers.StoppingCriteria):
    """Called after every token: notes the time, and stops nothing."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.times = [self.now()]

    def now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def __call__(self, input_ids: Tensor, scores: Tensor, **_: Any) -> Tensor:
        self.times.append(self.now())
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


def generate(model: Any, spec: str | None, work: Workload) -> Run:
    """One `generate`; spec is None for DynamicCache."""
    config, on_gpu = model.config, model.device.type == "cuda"
    ids = torch.randint(3, config.vocab_size, (work.rows, work.prompt), device=model.device)
    cache: Any = transformers.DynamicCache(config=config)
    context: AbstractContextManager[None] = nullcontext()
    if spec is not None:
        cache, context = SparseCache(config, spec), use_gossamer(model, spec)
    gc.collect()
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    with context:
        clock = Clock(model.device)
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=work.new,
            do_sample=False,
            past_key_values=cache,
            stopping_criteria=transformers.StoppingCriteriaList([clock]),
        )
    times = clock.times
    return Run(
        times[1] - times[0],
        [b - a for a, b in pairwise(times[1:])],
        torch.cuda.max_memory_allocated() if on_gpu else 0,
        _cache_bytes(cache),
    )


def _cache_bytes(cache: Any) -> int:
    if isinstance(cache, SparseCache):
        return cache.nbytes
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)


@torch.inference_mode()
def logits_error(config: Any, spec: str, dtype: torch.dtype, device: str) -> float:
    """Relative error of logits over a prompt and 8 tokens, against float32 on the CPU."""
    small = copy.deepcopy(config)
    small.num_hidden_layers, small.vocab_size, small.intermediate_size = 2, 1024, 1024
    small.bos_token_id = small.eos_token_id = small.pad_token_id = None
    torch.manual_seed(0)
    build: Any = transformers.LlamaForCausalLM
    reference = build(small).to(dtype).float().eval()
    model = copy.deepcopy(reference).to(device, dtype)
    ids = torch.randint(0, 1024, (2, 308))
    mask = torch.ones(2, 300, dtype=torch.long)
    mask[1, :70] = 0
    found = []
    for each in (reference, model):
        # For "dense", the reference is transformers' own cache.
        own = each is reference and spec == "dense"
        context = nullcontext() if own else use_gossamer(each, spec)
        with context:
            inputs = {"attention_mask": mask.to(each.device)}
            out = each(ids[:, :300].to(each.device), **inputs, position_ids=_positions(mask, each))
            logits = [out.logits[0], out.logits[1, 70:]]
            for at in range(300, 308):
                longer = torch.cat([mask, mask.new_ones(2, at - 299)], 1)
                out = each(
                    ids[:, at : at + 1].to(each.device),
                    past_key_values=out.past_key_values,
                    attention_mask=longer.to(each.device),
                    position_ids=_positions(longer, each)[:, -1:],
                )
                logits.append(out.logits[:, 0])
        found.append(torch.cat([x.flatten() for x in logits]).float().cpu())
    error = float((found[1] - found[0]).norm() / found[0].norm())
    largest = LARGEST_ERROR[dtype][spec != "dense"]
    if not error < largest:
        raise WrongResultError(f"{spec}: logits are off by {error:.3g}; must be below {largest}")
    return error


def _positions(mask: Tensor, model: Any) -> Tensor:
    return (mask.cumsum(-1) - 1).clamp_min(0).to(model.device)


def record(run: Run, spec: str | None, work: Workload, model: Any, error: float) -> Record:
    """bytes: what a step reads at the least, weights and cache."""
    steps = run.steps[min(SKIPPED, len(run.steps) // 2) :]
    weights = sum(p.nbytes for p in model.parameters())
    parameters = sum(p.numel() for p in model.parameters())
    found = Record.of(
        Measurement(timing(steps), 0.0, error),
        op="transformers_cache",
        backend=DYNAMIC if spec is None else "gossamer",
        shape=[work.rows, work.prompt, work.new],
        dtype=model.dtype,
        variant=spec or "dense",
        bytes=weights + run.cache,
        flops=2 * parameters * work.rows,
        ceiling_gbps=copy_bandwidth(str(model.device)),
        device=str(model.device),
        facts={
            "tokens_per_second": work.rows * len(steps) / sum(steps),
            "prefill_seconds": run.prefill,
            "peak_bytes": run.peak,
            "cache_bytes": run.cache,
            "weight_bytes": weights,
        },
    )
    return replace(found, versions={**found.versions, "transformers": transformers.__version__})


def main(
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cuda",
    results: Annotated[Path, typer.Option(help="Folder of result files.")] = RESULTS,
    rows: Annotated[int, typer.Option(help="Batch size.")] = 8,
    prompt: Annotated[int, typer.Option(help="Tokens of each prompt.")] = 16384,
    new: Annotated[int, typer.Option(help="New tokens of each.")] = 72,
) -> None:
    """Measure, print and write results/DEVICE/transformers_cache.jsonl."""
    work = Workload(rows, prompt, new)
    dtype = torch.bfloat16
    config = transformers.AutoConfig.from_pretrained(MODEL, local_files_only=True)
    if device == "cpu":
        config.hidden_size, config.intermediate_size, config.head_dim = 256, 256, 64
        config.num_attention_heads = config.num_key_value_heads = 4
    for each in SPECS:
        print(each, "float32", logits_error(config, each, torch.float32, device), flush=True)
    errors = {each: logits_error(config, each, dtype, device) for each in SPECS}
    print("errors of logits", errors, flush=True)
    if device == "cpu":
        config.num_hidden_layers, config.vocab_size = 2, 1024
        build: Any = transformers.LlamaForCausalLM
        model = build(config).to(dtype).eval()
        model.generation_config.eos_token_id, model.generation_config.pad_token_id = None, 0
    else:
        model = peer_model(MODEL, dtype, device, random_weights=True)
    records: list[Record] = []
    folder = results / device_folder(device)
    for spec in (None, *SPECS):
        generate(model, spec, Workload(rows, min(prompt, 512), 4))  # compiles what is to be
        run = generate(model, spec, work)
        records.append(record(run, spec, work, model, errors[spec or "dense"]))
        facts = records[-1].facts
        print(records[-1].backend, records[-1].variant, facts, flush=True)
        write_records(records, folder / "transformers_cache.jsonl")


if __name__ == "__main__":
    typer.run(main)
