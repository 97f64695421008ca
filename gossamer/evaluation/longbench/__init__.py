"""LongBench (arXiv 2308.14508): its 16 English tasks, on data that the user brings.

    longbench_tasks(context=4096, folder=Path("LongBench/data"))

makes tasks for `gossamer.evaluation.evaluate`. The folder has one `<task>.jsonl` for each,
as in the benchmark's data.zip; without one, the package `datasets` loads them.
"""

from gossamer.evaluation.longbench.settings import SETTINGS
from gossamer.evaluation.longbench.task import LongBench, longbench_tasks, problems

__all__ = ["SETTINGS", "LongBench", "longbench_tasks", "problems"]
