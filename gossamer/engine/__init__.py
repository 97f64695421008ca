"""The engine: continuous batching over a paged, compressed KV cache."""

from gossamer.engine.config import EngineConfig
from gossamer.engine.engine import Engine
from gossamer.engine.llm import LLM
from gossamer.engine.outputs import CompletionOutput, Delta, RequestOutput, TokenLogprobs, Usage
from gossamer.engine.prompts import PromptTooLongError
from gossamer.engine.sampling_params import SamplingParams
from gossamer.engine.structured_outputs import StructuredOutputs
from gossamer.engine.workers import WorkerDiedError

__all__ = [
    "LLM",
    "CompletionOutput",
    "Delta",
    "Engine",
    "EngineConfig",
    "PromptTooLongError",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputs",
    "TokenLogprobs",
    "Usage",
    "WorkerDiedError",
]
