"""Tasks of any length in the manner of RULER (https://arxiv.org/abs/2404.06654), made from a seed.

What is asked for lies anywhere in a document that fills `length` tokens. Questions begin like what
answers them and come after answered ones, as a small model without instructions needs it (see
gossamer.evaluation.retrieval).
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, cycle, islice
from random import Random
from typing import ClassVar

from gossamer.evaluation.filler import NAMES, NOUNS, filler_of, names
from gossamer.evaluation.haystack import LongTask, Parts
from gossamer.evaluation.retrieval import ANSWER_ROOM, FACT, LINE_END
from gossamer.evaluation.tasks import Example, at_least

DIGITS = 4
NUMBERS = range(10 ** (DIGITS - 1), 10**DIGITS)
NUMBER_TOKENS = DIGITS + ANSWER_ROOM
SHOTS = 3  # answered questions
SHOT_WORDS = 30  # of a list with its answer
WORD_TOKENS = 3  # of a word of an answer, with its comma

KEY = "The number of {}'s {} is"
VALUE = "The value of VAR {} is"
COMMON = "The most common words are:"
_CITIES = "Athens Berlin Boston Cairo Chicago Dublin London Madrid Moscow Paris Rome Tokyo"
_JOBS = "baker banker dentist driver farmer judge lawyer nurse painter pilot singer waiter"
_COLOURS = "black blue brown green grey orange pink purple red violet white yellow"
QUESTIONS = (  # what is asked, how facts and answers begin, and how they end
    ("Where does {} live?", "{} lives in", _CITIES.split()),
    ("What is the job of {}?", "{} works as a", _JOBS.split()),
    ("Which colour does {} like?", "{} likes the colour", _COLOURS.split()),
)


@dataclass(frozen=True)
class LongNeedle(LongTask):
    """One number in a haystack of filler."""

    stem: ClassVar[str] = "long-needle"

    @property
    def answer_tokens(self) -> int:
        return NUMBER_TOKENS

    def parts(self, random: Random) -> Parts:
        question, number = FACT.format(random.choice(NAMES)), str(random.choice(NUMBERS))
        asked, told = [(question, (number,))], [f"{question} {number}."]
        return Parts(filler_of(self.text, random), asked, told)


@dataclass(frozen=True)
class LongMultikey(LongTask):
    """A haystack of keys with numbers, `questions` of which are asked for.

    Filler follows where the keys run out, as of some 200,000 tokens.
    """

    questions: int = 10

    stem: ClassVar[str] = "long-multikey"

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, questions=1)

    @property
    def answer_tokens(self) -> int:
        return NUMBER_TOKENS

    def parts(self, random: Random) -> Parts:
        pairs = random.sample([(who, what) for who in NAMES for what in NOUNS], self._keys)
        facts = [(KEY.format(*pair), str(random.choice(NUMBERS))) for pair in pairs]
        told = [f"{question} {number}." for question, number in facts]
        first = SHOTS + self.questions
        asked = random.sample(range(first), first)
        return Parts(
            filler=chain(told[first:], filler_of(self.text, random)),
            asked=[(facts[i][0], (facts[i][1],)) for i in asked[SHOTS:]],
            told=told[:first],
            tail="".join(f"{told[i]}\n" for i in asked[:SHOTS]),
        )

    @property
    def _keys(self) -> int:
        """As many as can be needed, a key being longer than 4 tokens."""
        return min(len(NAMES) * len(NOUNS), SHOTS + self.questions + self.length // 4)


@dataclass(frozen=True)
class LongVariables(LongTask):
    """Chains of a number, given to a variable, and `hops` more; the value of the last is asked for.

    `chains` chains lie among the filler at once; three of them are answered.
    """

    chains: int = 8
    hops: int = 1

    stem: ClassVar[str] = "long-variables"

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, chains=SHOTS + 1, hops=0)
        if self.chains * (self.hops + 1) > len(NAMES):
            raise ValueError(
                f"chains is {self.chains} and hops is {self.hops}; must have at most {len(NAMES)} "
                "variables, chains x (hops + 1)"
            )

    @property
    def answer_tokens(self) -> int:
        return NUMBER_TOKENS

    def parts(self, random: Random) -> Parts:
        found = iter(name.upper() for name in names(random, self.chains * (self.hops + 1)))
        last, told = [""] * self.chains, []
        values = [str(number) for number in random.sample(NUMBERS, self.chains)]
        turns = [i for i in range(self.chains) for _ in range(self.hops + 1)]
        for i in random.sample(turns, len(turns)):  # chains lie across each other
            variable = next(found)
            told.append(f"VAR {variable} = {f'VAR {last[i]}' if last[i] else values[i]}.")
            last[i] = variable
        asked = [(VALUE.format(last[i]), (values[i],)) for i in range(self.chains)]
        tail = "".join(f"{question} {value}.\n" for question, (value,) in asked[:SHOTS])
        return Parts(filler_of(self.text, random), asked[SHOTS:], told, tail=tail)


@dataclass(frozen=True)
class LongWords(LongTask):
    """A list of words, half of which are the same `common` ones; three short lists are answered.

    The score is the share of them among as many words of the answer.
    """

    common: int = 3

    stem: ClassVar[str] = "long-words"

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, common=1)
        if self.common > SHOT_WORDS // 4:
            raise ValueError(f"common is {self.common}; must be 1 to {SHOT_WORDS // 4}")

    @property
    def answer_tokens(self) -> int:
        return WORD_TOKENS * self.common + LINE_END

    def grade(self, text: str, example: Example) -> float:
        line = next(iter(text.strip().splitlines()), "")
        said = re.findall(r"\w+", line.lower())[: len(example.target)]
        return len(set(said) & set(example.target)) / len(example.target)

    def parts(self, random: Random) -> Parts:
        nouns, head = iter(random.sample(NOUNS, len(NOUNS))), ""
        lists = [list(islice(nouns, self.common)) for _ in range(SHOTS + 1)]
        rare = list(nouns)
        for common in lists[:SHOTS]:
            words = " ".join(islice(_words(random, common, rare), SHOT_WORDS))
            head += f"Words: {words}\n\n{COMMON} {', '.join(common)}.\n\n"
        asked = [(COMMON, tuple(lists[SHOTS]))]
        return Parts(_words(random, lists[SHOTS], rare), asked, head=f"{head}Words: ")


@dataclass(frozen=True)
class LongQA(LongTask):
    """`facts` facts, each about another person, among filler; `questions` of them are asked for."""

    facts: int = 20
    questions: int = 10

    stem: ClassVar[str] = "long-qa"

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, questions=1, facts=SHOTS + self.questions)
        if self.facts > len(NAMES):
            raise ValueError(f"facts is {self.facts}; must be at most {len(NAMES)}")

    @property
    def answer_tokens(self) -> int:
        return WORD_TOKENS + LINE_END

    def grade(self, text: str, example: Example) -> float:
        word = re.search(r"\w+", text)
        return float(word is not None and word[0] in example.target)

    def parts(self, random: Random) -> Parts:
        told, asked = [], []
        for who in names(random, self.facts):
            question, said, answers = random.choice(QUESTIONS)
            answer = random.choice(answers)
            told.append(f"{said.format(who)} {answer}.")
            start = f"Question: {question.format(who)}\nAnswer: {said.format(who)}"
            asked.append((start, (answer,)))
        asked = random.sample(asked, SHOTS + self.questions)
        tail = "".join(f"{question} {answer}.\n" for question, (answer,) in asked[:SHOTS])
        return Parts(filler_of(self.text, random), asked[SHOTS:], told, tail=tail)


def _words(random: Random, common: Sequence[str], rare: Sequence[str]) -> Iterator[str]:
    others = cycle(rare)
    while True:
        block = [*common, *islice(others, len(common))]
        yield from random.sample(block, len(block))


LONG: dict[str, type[LongTask]] = {
    task.stem: task for task in (LongNeedle, LongMultikey, LongVariables, LongWords, LongQA)
}
