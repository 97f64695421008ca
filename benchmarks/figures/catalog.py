"""Every figure: its name, what makes it, and the files that it is made of."""

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.figures import cache, fusion, kernels, masks, mustafar, stof, story
from benchmarks.figures.chart import Chart, Picture
from benchmarks.records import Benchmarks

Make = Callable[[Benchmarks], Chart | Picture]


@dataclass(frozen=True)
class Figure:
    """name: of its files. files: stems of the results that it reads. group: in the report."""

    name: str
    make: Make
    files: tuple[str, ...] = ()
    group: str = "gossamer"


STORY, STOF, MUSTAFAR, OURS = "The story", "STOF", "Mustafar", "Kernels and quality"
PAIRS = tuple(op for op, _ in stof.PAIRS.values())
FIGURES = (
    Figure("token-cache", cache.token, (), STORY),
    Figure("cache-semantics", cache.semantics, (), STORY),
    Figure("quality-speed", story.quality_speed, ("smollm2-135m", "decode_codes"), STORY),
    Figure("throughput-latency", story.throughput_latency, ("loads", "loads_vllm"), STORY),
    Figure("planner", story.planner, (), STORY),
    Figure("decode_speedup", kernels.decode_speedup, ("decode_attention",), OURS),
    Figure("decode-limit", kernels.decode_limit, kernels.DECODE, OURS),
    Figure("quality-memory", story.quality_memory, ("smollm2-135m",), OURS),
    Figure("roofline", kernels.roofline, (), OURS),
    Figure("mask-gallery", masks.gallery, (), STOF),
    Figure("stof-fig03", stof.fused, PAIRS, STOF),
    Figure("stof-fig04", masks.reuse, masks.FILES, STOF),
    Figure("stof-fig09-a100", masks.published("A100"), (), STOF),
    Figure("stof-fig10-rtx4090", masks.published("RTX 4090"), (), STOF),
    Figure("masked-attention", masks.attention, masks.FILES, STOF),
    Figure("stof-fig11", stof.end_to_end, (fusion.FILE,), STOF),
    Figure("stof-fig12", stof.ablation, (fusion.FILE,), STOF),
    Figure("stof-fig13", stof.overhead, (fusion.FILE,), STOF),
    Figure("stof-table4", stof.tuning, (fusion.FILE,), STOF),
    Figure("mustafar-quality", mustafar.quality, ("smollm2-135m",), MUSTAFAR),
    Figure(
        "mustafar-step", mustafar.breakdown, ("decode_attention", "kv_append", "kv_pack"), MUSTAFAR
    ),
    Figure("mustafar-memory", mustafar.memory, ("decode_attention",), MUSTAFAR),
    Figure(
        "mustafar-throughput",
        mustafar.throughput,
        ("transformers_cache", "engine_throughput"),
        MUSTAFAR,
    ),
)
