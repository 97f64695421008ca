"""The 16 English tasks of LongBench (arXiv 2308.14508), with its published settings."""

from dataclasses import dataclass
from typing import Literal

from gossamer.evaluation.longbench.metrics import (
    Metric,
    classification,
    code_similarity,
    count,
    retrieval,
    rouge_l,
    token_f1,
)
from gossamer.evaluation.longbench.templates import TEMPLATES

Category = Literal[
    "single-document QA", "multi-document QA", "summarization", "few-shot", "synthetic", "code"
]


@dataclass(frozen=True)
class Settings:
    """max_tokens: of an answer. few-shot answers are their first line; few-shot and code prompts
    go on in the form of their context, so they are never a chat.
    """

    category: Category
    max_tokens: int
    metric: Metric
    template: str

    @property
    def first_line(self) -> bool:
        return self.category == "few-shot"

    @property
    def chat(self) -> bool:
        return self.category not in ("few-shot", "code")


_ROWS: dict[str, tuple[Category, int, Metric]] = {
    "narrativeqa": ("single-document QA", 128, token_f1),
    "qasper": ("single-document QA", 128, token_f1),
    "multifieldqa_en": ("single-document QA", 64, token_f1),
    "hotpotqa": ("multi-document QA", 32, token_f1),
    "2wikimqa": ("multi-document QA", 32, token_f1),
    "musique": ("multi-document QA", 32, token_f1),
    "gov_report": ("summarization", 512, rouge_l),
    "qmsum": ("summarization", 512, rouge_l),
    "multi_news": ("summarization", 512, rouge_l),
    "trec": ("few-shot", 64, classification),
    "triviaqa": ("few-shot", 32, token_f1),
    "samsum": ("few-shot", 128, rouge_l),
    "passage_count": ("synthetic", 32, count),
    "passage_retrieval_en": ("synthetic", 32, retrieval),
    "lcc": ("code", 64, code_similarity),
    "repobench-p": ("code", 64, code_similarity),
}
SETTINGS = {name: Settings(*row, TEMPLATES[name]) for name, row in _ROWS.items()}


def best_score(task: str, prediction: str, answers: tuple[str, ...], classes: list[str]) -> float:
    """The best score of the prediction, after post-processing, among the answers."""
    settings = SETTINGS[task]
    if settings.first_line:
        prediction = prediction.lstrip("\n").split("\n")[0]
    return max(settings.metric(prediction, answer, classes) for answer in answers)
