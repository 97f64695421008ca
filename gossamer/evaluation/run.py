"""Names of gossamer.evaluation.experiment before 0.2, for code that imports them from here."""

from gossamer.evaluation.experiment import Experiment as Plan
from gossamer.evaluation.experiment import Result, evaluate

__all__ = ["Plan", "Result", "evaluate"]
