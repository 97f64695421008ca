"""What the README claims, each with the records and the command behind it."""

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.records import Benchmarks, command_of
from benchmarks.reports import codes, masked, older
from benchmarks.reports.markdown import geometric_mean, table
from benchmarks.suites.decode_codes import SHAPES
from gossamer.bench import Record

GPU = "nvidia-h200"
CODED = "coded 20%"
SPARSE = "sparse:k=64,v=40"
Cells = tuple[str, str, str]  # before, with Gossamer, what else


@dataclass(frozen=True)
class Claim:
    """file: stem of the results that it is made of. where: the part of docs that tells more."""

    what: str
    cells: Callable[[list[Record]], Cells]
    file: str
    where: str


def _decode(records: list[Record]) -> Cells:
    spec = next(spec for spec, name in codes.TIMED.items() if name == CODED)
    first, second = (
        codes.speed_up_of(records, spec, shape) for shape in (SHAPES[0], (32, 8, 4096))
    )
    more = f"{second:.2f}x at 32 x 4,096 tokens"
    return "torch's fastest (cuDNN, flash)", f"**{first:.2f}x**", more


def _by_cache(records: list[Record]) -> tuple[Record, Record, Record]:
    """Hugging Face's own, our dense one, our sparse one."""
    own = {r.variant: r for r in records if r.backend == "gossamer"}
    return next(r for r in records if r.backend != "gossamer"), own["dense"], own[SPARSE]


def _memory(records: list[Record]) -> Cells:
    theirs, _, sparse = (r.facts["cache_bytes"] / 1e9 for r in _by_cache(records))
    return f"{theirs:.1f} GB", f"**{sparse:.1f} GB**", f"`{SPARSE}`"


def _generate(records: list[Record]) -> Cells:
    theirs, dense, sparse = (r.shape[0] * 1e3 / r.median_ms for r in _by_cache(records))
    return f"{theirs:.0f}", f"**{sparse:.0f}**", f"our dense cache: {dense:.0f}"


def _capacity(records: list[Record]) -> Cells:
    own = {r.variant.split(", ")[1]: r for r in records if "llama-3-8b" in r.variant}
    dense, sparse = own["dense"], own["sparse:k=40,v=40"]
    before, after = (
        f"{r.shape[0]} sequences, {r.facts['tokens_per_second']:,.4g} tokens/s"
        for r in (dense, sparse)
    )
    return before, f"**{after}**", f"`{sparse.variant.split(', ')[1]}`"


def _masked(records: list[Record]) -> Cells:
    ratios = masked.over_flex(records).values()
    ends = f"{min(ratios):.2f}x to {max(ratios):.2f}x"
    return "FlexAttention at its best", f"**{geometric_mean(ratios):.2f}x**", ends


CLAIMS = (
    Claim(
        "decode attention, 8 x 32,768 tokens, a cache of 20% of the bytes",
        *(_decode, codes.FILE, "benchmarks.md#codes"),
    ),
    Claim(
        "KV cache in transformers, Llama-3-8B's shape, 8 x 16,384 tokens",
        *(_memory, "transformers_cache", "transformers.md#what-it-saves"),
    ),
    Claim(
        "tokens/s of that `generate`",
        *(_generate, "transformers_cache", "transformers.md#what-it-saves"),
    ),
    Claim(
        "engine in 39 GB of KV cache, contexts of 32,768",
        *(_capacity, "engine_throughput", "benchmarks.md#engine"),
    ),
    Claim(
        "attention under sparse masks, mean of 16",
        *(_masked, "masked_attention", "masked-attention.md#figures"),
    ),
)


def committed() -> Benchmarks:
    return Benchmarks.of(device=GPU)


def readme_table() -> str:
    """The first table of the README."""
    found, old = committed(), {file for file, _ in older.kept()}
    rows = []
    for claim in CLAIMS:
        before, after, more = claim.cells(found.records(claim.file))
        path = f"benchmarks/results/{GPU}/{claim.file}.jsonl"
        links = (
            f"[how](docs/{claim.where}), [records]({path}), [command](docs/benchmarks.md#claims)"
        )
        if path in old:
            links += ", [older sources](docs/benchmarks.md#older-records)"
        rows.append([claim.what, before, after, f"{more} {links}"])
    return table(["on one NVIDIA H200", "before", "with Gossamer", ""], rows)


def claims_table(found: Benchmarks | None = None) -> str:
    """Records and commands of the claims of the README."""
    found = found or committed()
    rows = []
    for claim in CLAIMS:
        records = found.records(claim.file)
        before, after, more = claim.cells(records)
        revisions = ", ".join(dict.fromkeys(f"`{r.revision}`" for r in records))
        link = f"[{claim.file}](../benchmarks/results/{GPU}/{claim.file}.jsonl)"
        value = f"{before}: {after} ({more})"
        rows.append([claim.what, value, link, f"`{command_of(claim.file)}`", revisions])
    return table(["claim", "value", "records", "command", "measured at"], rows)
