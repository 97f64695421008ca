"""A search whose engine is known in advance: what every side costs is a formula."""

from random import Random
from statistics import fmean

from gossamer.evaluation.frontier.candidates import Budget, Problem
from gossamer.evaluation.frontier.measure import Conditions, Measuring
from gossamer.evaluation.frontier.screening import Errors
from gossamer.evaluation.frontier.search import Effort, Search
from gossamer.evaluation.perplexity import Perplexity
from gossamer.evaluation.progress import Stages
from gossamer.evaluation.store import Store
from gossamer.kv import Dense, KVConfig, KVShape
from gossamer.kv.layouts import Coded
from gossamer.ops.kv_block import VALUE_BITS
from gossamer.ops.kv_profile import parse_profile
from tests.evaluation.fakes import FakeSubject

SHAPE = KVShape(layers=2, query_heads=4, kv_heads=2, head_dim=64)
CONTEXT, WINDOWS = 256, 4
TEXT = " ".join(f"w{i * i % 97}" for i in range(CONTEXT * WINDOWS))


def error_of(side, name="k"):
    """Fewer bits and fewer entries are worse; calibrated ranks, bases and codes are better."""
    layout = side.layout
    if isinstance(layout, Coded):
        bits = fmean(parse_profile(layout.bits).bits)
        return 0.02 * 4.0 ** (2 - bits) * (1.0 if name == "k" else 0.5)
    dense = isinstance(layout, Dense)
    bits = VALUE_BITS[layout.dtype if dense else layout.values]
    error = 4.0 ** (2 - bits) + (0.0 if dense else 0.4 * (1 - layout.keep / 64) ** 2)
    error *= {"row": 1.0, "channel": 0.6, "group": 0.7, "none": 1.0}[layout.scales]
    error *= 0.5 if side.basis == "pca" else 1.0
    error *= {"weighted": 0.6, "gradient": 0.7}.get(side.policy, 1.0)
    return error * (1.0 if name == "k" else 0.5)


def cost_of(config):
    """What it adds to the NLL of a token; gradients do better than their error says."""
    k = 0.5 * error_of(config.k) * (0.5 if config.k.policy == "gradient" else 1.0)
    cost = k + 0.5 * error_of(config.v, "v")
    return cost * (0.7 if config.sink else 1.0) * (32 / config.window) ** 0.2


class Costly(FakeSubject):
    """Tokens have a log probability of -2, less what the cache costs, less noise."""

    def __init__(self, spec):
        config = KVConfig.parse(spec)
        super().__init__(name=spec, share=config.share(SHAPE))
        self.cost = 0.0 if spec == "dense" else cost_of(config)

    def loglikelihood(self, windows):
        noise = Random(self.name)
        return [[-2 - self.cost * noise.uniform(0.5, 1.5) for _ in w[1:]] for w in windows]


def make_search(
    budget="25%", *, effort=None, store=None, calibrated=True, coded=False, opened=Costly
):
    """A search, and the specs that were opened for it."""
    specs = []

    def open_one(spec):
        specs.append(spec)
        return opened(spec)

    text = Perplexity(TEXT, tokens=CONTEXT * WINDOWS, context=CONTEXT)
    conditions = Conditions(
        "fake", {"dtype": "float32"}, ("made.safetensors", "0123") if calibrated else None
    )
    stages = Stages(shown=False)
    measuring = Measuring(text, conditions, open_one, store or Store(), stages)
    problem = Problem(SHAPE, Budget.parse(budget, SHAPE, 8192), calibrated=calibrated, coded=coded)
    effort = effort or Effort(probe_tokens=CONTEXT)
    return Search(problem, effort, measuring, screen_by_formula), specs


def screen_by_formula(candidates, with_sink=0.7):
    """with_sink: what is left of errors with one."""
    return {
        sink: Errors(
            {side: factor * error_of(side) for side in candidates.k},
            {side: factor * error_of(side, "v") for side in candidates.v},
        )
        for sink, factor in ((0, 1.0), (32, with_sink))
    }
