"""Metrics of LongBench on cases whose arithmetic fits beside them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.evaluation.longbench.metrics import (
    classification,
    code_similarity,
    common_subsequence,
    count,
    normalized,
    retrieval,
    rouge_l,
    token_f1,
)
from gossamer.evaluation.longbench.settings import SETTINGS, best_score


def test_normalization():
    assert normalized("The  U.S.A., an Apple; a b-c") == ["usa", "apple", "bc"]
    assert normalized("theatre another") == ["theatre", "another"]  # articles are whole words
    assert normalized("the a.") == []


def test_token_f1():
    # {in, paris, france} and {paris}: 1 common, precision 1/3, recall 1, F = 2 * 1/3 / (4/3) = 1/2
    assert token_f1("In Paris, France.", "the Paris") == pytest.approx(1 / 2)
    # "no no yes" and "no no no": 2 common of 3 and 3: 2 * 2 / 6
    assert token_f1("no no yes", "No, no, no") == pytest.approx(2 / 3)
    assert token_f1("Paris", "paris") == 1
    assert token_f1("London", "Paris") == 0
    assert token_f1("", "Paris") == 0
    assert token_f1("the", "Paris") == 0  # nothing is left of it


def test_rouge_l():
    # police killed the gunman / police kill the gunman: police the gunman, 3 of 4 and 4: 6 / 8
    assert rouge_l("police kill the gunman", "police killed the gunman") == pytest.approx(0.75)
    # the gunman kill police: "the gunman", 2 of 4 and 4
    assert rouge_l("the gunman kill police", "police killed the gunman") == pytest.approx(0.5)
    # 2 of 5 and of 3 words: precision 2/5, recall 2/3, F = 2 * 2 / 8
    assert rouge_l("a x b y z", "a b c") == pytest.approx(0.5)
    assert rouge_l("", "a b") == 0
    assert rouge_l("c", "") == 0
    assert rouge_l("A b", "a b") == pytest.approx(0.5)  # case counts


@given(
    a=st.lists(st.sampled_from("abc"), max_size=7), b=st.lists(st.sampled_from("abc"), max_size=7)
)
def test_common_subsequence_against_recursion(a, b):
    def slow(i, j):
        if i == len(a) or j == len(b):
            return 0
        if a[i] == b[j]:
            return 1 + slow(i + 1, j + 1)
        return max(slow(i + 1, j), slow(i, j + 1))

    assert common_subsequence(a, b) == slow(0, 0)


def test_classification():
    classes = ["Animal", "Other animal kind", "Date", "City", "Animal kind"]
    assert classification("City", "City", classes) == 1
    assert classification("City or Date", "City", classes) == 1 / 2  # two are named
    assert classification("Date", "City", classes) == 0
    assert classification("", "City", classes) == 0
    # "Animal" is named because it is part of the answer, and does not count.
    assert classification("Animal kind", "Animal kind", classes) == 1
    # The other way round it does: "Animal" and "Animal kind" are named, the answer is "Animal".
    assert classification("Animal kind", "Animal", classes) == 1 / 2
    assert classification("city", "City", classes) == 0  # case counts


def test_numbers():
    assert count("There are 7", "7") == 1
    assert count("7 or 8, so 7", "7") == pytest.approx(2 / 3)
    assert count("17", "7") == 0
    assert count("many", "7") == 0
    assert retrieval("Paragraph 12", "Paragraph 12") == 1
    assert retrieval("Paragraph 12 or 3", "Paragraph 12") == 1 / 2
    assert retrieval("none", "Paragraph 12") == 0
    with pytest.raises(ValueError, match="an answer is '12'; must be Paragraph and a number"):
        retrieval("12", "12")


def test_code_similarity():
    # "abcd" and "bcde": "bcd" matches, 2 * 3 / 8
    assert code_similarity("abcd", "bcde") == pytest.approx(0.75)
    assert code_similarity("\n\nx = 1\ny = 2", "x = 1") == 1  # the first line
    assert code_similarity("```python\n# one\n// two\nx = 1", "x = 1") == 1  # that is code
    assert code_similarity("# one", "x = 1") == 0
    assert code_similarity("", "") == 1
    line = "a" * 150 + "b" * 150  # difflib would ignore both letters in so long a line
    assert code_similarity(line, line[:-1]) == pytest.approx(2 * 299 / 599)


def test_first_lines_and_the_best_answer():
    answers = ("Rome", "in the city of Rome")
    # few-shot: "\n" at the start goes, and so does what follows the first line
    assert best_score("triviaqa", "\n\nRome\nQuestion: Rome Rome", answers, []) == 1
    # elsewhere all lines count: rome twice and "question" against rome: 2 * 1 / 4
    assert best_score("hotpotqa", "Rome\nQuestion Rome", ("Rome",), []) == pytest.approx(1 / 2)
    # {rome} and {in, city, of, rome}: 2 * 1 / 5, which the other answer beats
    assert best_score("hotpotqa", "Rome", answers[1:], []) == pytest.approx(2 / 5)
    assert best_score("hotpotqa", "Rome", answers, []) == 1
    assert best_score("trec", "City\nDate", ("City",), ["City", "Date"]) == 1


def test_published_settings():
    assert {name: s.max_tokens for name, s in SETTINGS.items()} == {
        "narrativeqa": 128, "qasper": 128, "multifieldqa_en": 64, "hotpotqa": 32, "2wikimqa": 32,
        "musique": 32, "gov_report": 512, "qmsum": 512, "multi_news": 512, "trec": 64,
        "triviaqa": 32, "samsum": 128, "passage_count": 32, "passage_retrieval_en": 32, "lcc": 64,
        "repobench-p": 64,
    }  # fmt: skip
    assert [name for name, s in SETTINGS.items() if s.first_line] == ["trec", "triviaqa", "samsum"]
    assert [name for name, s in SETTINGS.items() if not s.chat] == [
        "trec", "triviaqa", "samsum", "lcc", "repobench-p",
    ]  # fmt: skip


@pytest.mark.parametrize("name", SETTINGS)
def test_templates_show_context_and_input(name):
    """Summaries, counting and lcc have no input of their own."""
    text = SETTINGS[name].template.format(context="<CONTEXT {x}>", input="<INPUT>")
    assert text.count("<CONTEXT {x}>") == 1
    has_input = name not in ("gov_report", "multi_news", "passage_count", "lcc")
    assert text.count("<INPUT>") == has_input
    if has_input:
        assert text.index("<CONTEXT") < text.index("<INPUT>")
    endings = ("Answer:", "Summary:", "answer is: ", "Next line of code:\n", "<INPUT>")
    assert text.endswith(endings)
