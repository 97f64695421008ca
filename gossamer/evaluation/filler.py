"""Names, nouns and filler sentences that tasks are made of; the same for the same seed."""

import re
from collections.abc import Iterator
from itertools import cycle, islice
from random import Random
from typing import Any

_NAMES = """
Adam Alice Andrew Anna Arthur Barbara Ben Betty Brian Carol Charles Chris Clara Daniel David
Diana Donald Dorothy Edward Elizabeth Emily Emma Eric Ethan Eva Frank Fred George Grace Hannah
Harry Helen Henry Irene Isaac Jack James Jane Jason Jennifer Jessica Joan John Joseph Julia
Karen Kate Kevin Laura Leo Linda Lisa Louis Lucy Margaret Maria Mark Martha Martin Mary Michael
Nancy Nathan Nicole Noah Oliver Oscar Pamela Patrick Paul Peter Philip Rachel Ralph Rebecca
Richard Robert Roger Rose Ruth Sam Sandra Sarah Simon Sophia Stephen Susan Thomas Tina Victor
Victoria Vincent Walter William Zoe
"""
NAMES = _NAMES.split()

_NOUNS = """
apple arm army art baby bag ball band bank bed bell bird boat body book bottle box boy bread
bridge brother bus camera car castle cat chair child church city clock cloud coat coffee cow
desk doctor dog door dress dust ear earth egg engine eye face farm field finger fire fish floor
flower foot forest friend game garden gate girl glass gold grass guitar hair hand hat heart hill
horse hotel house island key king kitchen knife lake lamp leaf letter library light lion map
market milk mirror money moon mountain mouse mouth music neck night nose ocean office oil paper
park pencil phone piano picture pig plane plate queen rain ring river road rock roof room rope
salt sand school sea seed sheep ship shirt shoe silver sister sky snow soap song spoon star
stone street sugar summer sun table tea teacher tiger tooth tower town train tree truck valley
village wall watch water wheel wind window winter woman wood
"""
NOUNS = _NOUNS.split()

# Without digits or names, so that nothing in it can be taken for an answer.
SENTENCES = (
    "The {} near the old {} was quiet for most of the day.",
    "People often walk from the {} to the {} in the evening.",
    "A small {} stood beside the {}, and nobody paid attention to it.",
    "In spring the {} looks different, and so does the {}.",
    "Some say that the {} is older than the {}, but it is hard to know.",
    "The weather changed slowly while the {} and the {} stayed the same.",
    "There was a {} on the way, and behind it there was a {}.",
    "Nobody remembered who had left the {} next to the {}.",
)


def names(random: Random, count: int) -> list[str]:
    """Different names. Raises ValueError for more than there are."""
    if not 1 <= count <= len(NAMES):
        raise ValueError(f"names is {count}; must be 1 to {len(NAMES)}")
    return random.sample(NAMES, count)


def filler_of(text: str, random: Random) -> Iterator[str]:
    """Sentences without end that say nothing of interest: those of a text, or made up.

    A text is read from a sentence that chance chooses, in circles. Raises ValueError for a text
    without a sentence.
    """
    if not text:
        while True:
            yield random.choice(SENTENCES).format(*random.sample(NOUNS, 2))
    parts = [s for s in re.split(r"(?<=[.!?])\s+", " ".join(text.split())) if s]
    if not parts:
        raise ValueError("the filler text is empty; must have at least one sentence")
    start = random.randrange(len(parts))
    yield from islice(cycle(parts), start, None)


def sentences(random: Random, text: str, tokenizer: Any, tokens: int) -> list[str]:
    """At most `tokens` tokens of filler, in whole sentences."""
    found: list[str] = []
    for sentence in filler_of(text, random):
        tokens -= token_count(tokenizer, sentence)
        if tokens < 0:
            break
        found.append(sentence)
    return found


def token_count(tokenizer: Any, text: str) -> int:
    """Tokens of a text that follows another. Raises ValueError for a model without tokenizer."""
    if tokenizer is None:
        raise ValueError("the model has no tokenizer; this task needs one")
    return len(tokenizer(f" {text}", add_special_tokens=False)["input_ids"])
