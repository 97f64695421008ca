"""Where steps run: in this process, or on the ranks of tensor parallelism."""

from typing import Protocol

from torch import Tensor

from gossamer.engine.runner import ModelRunner
from gossamer.engine.step import StepInput


class Executor(Protocol):
    """Runs steps in order."""

    def run(self, step: StepInput) -> Tensor:
        """Logits [rows, vocab] after the tokens that spans want them of, in order."""
        ...

    def close(self) -> None:
        """End everything that was started; can be called twice."""
        ...


class LocalExecutor:
    """The whole model in this process."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner

    def run(self, step: StepInput) -> Tensor:
        logits = self._runner.run(step)
        assert logits is not None, "rank 0 has logits"
        return logits

    def close(self) -> None:
        self._runner.close()
