"""What a sparse KV cache costs in quality, measured with the engine that serves it."""

from gossamer.evaluation.experiment import Experiment, Result, evaluate
from gossamer.evaluation.perplexity import Perplexity
from gossamer.evaluation.report import markdown, summarise
from gossamer.evaluation.retrieval import Copying, Lookup, Needle
from gossamer.evaluation.store import Store
from gossamer.evaluation.subject import EngineSubject

__all__ = [
    "Copying",
    "EngineSubject",
    "Experiment",
    "Lookup",
    "Needle",
    "Perplexity",
    "Result",
    "Store",
    "evaluate",
    "markdown",
    "summarise",
]
