"""How answers are scored, from 0 to 1: metric(prediction, answer, classes of the task).

Where they differ from the benchmark's own code, scores of caches are still comparable with each
other, but not to the last digit with published ones:

- ROUGE-L is that of Lin (2004) on words between spaces: the F-measure of their longest common
  subsequence. The package that LongBench uses cuts texts at full stops and counts each word once.
- Code is compared by difflib's ratio, 2 * matches / total length, as LongBench does without the
  package python-Levenshtein, but not rounded to percents.
- In classification, LongBench removes classes from a list while it goes through it, and so may
  leave one in; here all of them go.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from difflib import SequenceMatcher

Metric = Callable[[str, str, Sequence[str]], float]

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_COMMENT_MARKS = ("`", "#", "//")


def normalized(text: str) -> list[str]:
    """Words in lower case, without punctuation and articles."""
    return _ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split()


def f_measure(common: int, predicted: int, wanted: int) -> float:
    """The harmonic mean of precision and recall; 0 where nothing is in common."""
    return 2 * common / (predicted + wanted) if common else 0.0


def token_f1(prediction: str, answer: str, classes: Sequence[str] = ()) -> float:
    """Words in common, as often as both have them."""
    found, wanted = normalized(prediction), normalized(answer)
    return f_measure((Counter(found) & Counter(wanted)).total(), len(found), len(wanted))


def rouge_l(prediction: str, answer: str, classes: Sequence[str] = ()) -> float:
    """F-measure of the longest common subsequence of words."""
    found, wanted = prediction.split(), answer.split()
    return f_measure(common_subsequence(found, wanted), len(found), len(wanted))


def common_subsequence(a: Sequence[str], b: Sequence[str]) -> int:
    """Length of the longest one."""
    row = [0] * (len(b) + 1)  # row[j]: of what was read of a, and b[:j]
    for x in a:
        corner = 0  # row[j - 1] of the row before
        for j, y in enumerate(b, start=1):
            corner, row[j] = row[j], corner + 1 if x == y else max(row[j], row[j - 1])
    return row[-1]


def classification(prediction: str, answer: str, classes: Sequence[str]) -> float:
    """1 over the number of classes that the prediction names, if the answer is one of them.

    A class whose name is only part of the answer's ("animal" in "other animal") does not count.
    """
    named = [name for name in classes if name in prediction]
    named = [name for name in named if name == answer or name not in answer]
    return 1 / len(named) if answer in named else 0.0


def retrieval(prediction: str, answer: str, classes: Sequence[str] = ()) -> float:
    """The share of the prediction's numbers that are that of the answer, "Paragraph 7".

    Raises ValueError for an answer of another form.
    """
    wanted = re.search(r"Paragraph (\d+)", answer)
    if wanted is None:
        raise ValueError(f"an answer is {answer!r}; must be Paragraph and a number")
    return count(prediction, wanted[1])


def count(prediction: str, answer: str, classes: Sequence[str] = ()) -> float:
    """The share of the prediction's numbers that are the answer."""
    numbers = re.findall(r"\d+", prediction)
    return numbers.count(answer) / len(numbers) if numbers else 0.0


def code_similarity(prediction: str, answer: str, classes: Sequence[str] = ()) -> float:
    """How alike the first line of code is; lines with `, # or // are taken for comments."""
    lines = prediction.lstrip("\n").split("\n")
    code = (line for line in lines if not any(mark in line for mark in _COMMENT_MARKS))
    # Without autojunk: it would ignore letters that are frequent in lines of 200 and more.
    return SequenceMatcher(None, next(code, ""), answer, autojunk=False).ratio()
