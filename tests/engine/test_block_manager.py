"""BlockManager: which pages a sequence has, and which prefixes it finds."""

import pytest

from gossamer.engine.block_manager import BlockManager, Moves
from gossamer.engine.sampling_params import SamplingParams
from gossamer.engine.sequence import NO_PAGE, Sequence
from gossamer.kv.pages import OutOfPagesError
from gossamer.kv.rule import CacheRule

PLAIN = CacheRule(window=0, sink=0, plain=True)
SPARSE = CacheRule(window=1, sink=0, plain=False)


def manager(rule: CacheRule, stored: int = 32, dense: int = 32, caching: bool = True):
    return BlockManager(rule, stored, dense, b"root", caching)


def sequence(tokens: int, first: int = 0) -> Sequence:
    """Tokens first, first + 1, ... so that sequences with the same first one share all blocks."""
    ids = tuple(range(first, first + tokens))
    return Sequence("r", 0, ids, SamplingParams(), 0)


def compute(pages: BlockManager, seq: Sequence, end: int) -> Moves:
    """As the scheduler does it, up to token end - 1."""
    moves, start, before = Moves(), seq.computed, len(seq.stored)
    leaving = pages.extend(seq, start, end, moves)
    kept = pages.keep_for_prefixes(seq, start, end, moves)
    pages.commit(seq, start, end, before, kept)
    pages.drop(leaving)
    seq.computed = end
    return moves


def has(pages: list[int]) -> list[bool]:
    return [page != NO_PAGE for page in pages]


def test_plain_sequences_have_a_stored_page_per_block():
    pages, seq = manager(PLAIN), sequence(70)
    moves = compute(pages, seq, 70)
    assert len(set(seq.stored)) == 3
    assert seq.dense == []
    assert moves.stored == [(seq.row, block, page) for block, page in enumerate(seq.stored)]
    assert (moves.dense, moves.compress, moves.pack) == ([], [], [])
    pages.release(seq)
    assert pages.stored.in_use == 0


@pytest.mark.parametrize(
    ("rule", "tokens", "stored", "dense"),
    [
        (CacheRule(0, 0, False), 32, "", "d"),
        (CacheRule(0, 0, False), 33, "s", "-d"),
        (CacheRule(1, 0, False), 64, "", "dd"),
        (CacheRule(1, 0, False), 65, "s", "-dd"),
        (CacheRule(2, 0, False), 161, "sss", "---ddd"),
        (CacheRule(1, 1, False), 161, "-sss", "d---dd"),
        (CacheRule(0, 2, False), 161, "--sss", "dd---d"),
        (CacheRule(0, 2, False), 33, "-", "dd"),
    ],
)
@pytest.mark.parametrize("chunk", [1, 32, 500])
def test_what_is_stored_and_what_is_dense(rule, tokens, stored, dense, chunk):
    """The same pages whether tokens come one by one, in blocks or all at once."""
    pages, seq = manager(rule, caching=False), sequence(tokens)
    while seq.computed < tokens:
        compute(pages, seq, min(seq.computed + chunk, tokens))
    assert "".join("s" if page else "-" for page in has(seq.stored)) == stored
    assert "".join("d" if page else "-" for page in has(seq.dense)) == dense
    assert pages.stored.in_use == stored.count("s") == pages.rule.stored_blocks(tokens)
    assert pages.dense.in_use == dense.count("d") <= rule.dense_pages
    pages.release(seq)
    assert pages.stored.in_use == pages.dense.in_use == 0


def test_a_block_is_packed_in_its_own_step_or_compressed_later():
    pages, seq = manager(SPARSE, caching=False), sequence(200)
    moves = compute(pages, seq, 128)
    assert [(block, page) for _, block, page in moves.pack] == [*enumerate(seq.stored)]
    assert len(seq.stored) == 2
    assert moves.compress == []
    block_2 = seq.dense[2]
    moves = compute(pages, seq, 129)
    assert moves.pack == []
    assert moves.compress == [(block_2, seq.stored[2])]


def test_no_pages_changes_nothing():
    pages, seq, moves = manager(SPARSE, stored=1, dense=4), sequence(200), Moves()
    compute(pages, seq, 64)
    had = (list(seq.stored), list(seq.dense), pages.stored.in_use, pages.dense.in_use)
    with pytest.raises(OutOfPagesError, match="4 stored and 1 dense pages wanted; 1 and 2 avail"):
        pages.extend(seq, 64, 192, moves)
    assert had == (seq.stored, seq.dense, pages.stored.in_use, pages.dense.in_use)
    assert moves == Moves()


# ---- prefixes -----------------------------------------------------------------------------


def found(pages: BlockManager, tokens: int, first: int = 0) -> int:
    """How many tokens of such a sequence are found; it keeps its pages."""
    return pages.find_prefix(sequence(tokens, first))


@pytest.mark.parametrize("rule", [PLAIN, SPARSE, CacheRule(0, 0, False), CacheRule(1, 2, False)])
def test_the_longest_prefix_is_found(rule):
    pages, seq = manager(rule), sequence(200)
    compute(pages, seq, 200)
    pages.release(seq)
    for tokens, expected in ((300, 192), (193, 192), (192, 160), (65, 64), (33, 32), (32, 0)):
        assert found(pages, tokens) == expected, tokens
    assert found(pages, 200, first=1) == 0


def test_at_least_one_token_is_left_to_compute():
    pages, seq = manager(PLAIN), sequence(64)
    compute(pages, seq, 64)
    again = sequence(64)
    assert pages.find_prefix(again) == again.computed == 32
    assert again.stored == seq.stored[:1]  # the very page, in use by both
    assert pages.stored.in_use == 2


def test_a_prefix_of_two_texts_ends_where_they_part():
    pages, seq = manager(PLAIN), sequence(128)
    compute(pages, seq, 128)
    parts = Sequence("r", 0, (*range(70), *range(500, 600)), SamplingParams(), 0)
    assert pages.find_prefix(parts) == 64


def test_blocks_are_named_by_all_before_them():
    """Equal tokens behind other ones are another block."""
    pages = manager(PLAIN)
    compute(pages, Sequence("r", 0, (*[1] * 32, *[2] * 32, 3), SamplingParams(), 0), 65)
    other = Sequence("r", 0, (*[9] * 32, *[2] * 32, 3), SamplingParams(), 0)
    assert pages.find_prefix(other) == 0


def test_a_prefix_needs_the_dense_pages_of_its_window():
    """Where the last ones are gone, a shorter prefix whose window is there is found."""
    pages, seq = manager(CacheRule(2, 0, False), dense=10), sequence(200)
    compute(pages, seq, 200)
    pages.release(seq)
    assert found(pages, 200) == 192
    hashes = [seq.block_hash(block, b"root") for block in range(6)]
    gone = pages.dense.find(hashes[4])
    pages.dense._forget(gone)
    assert found(pages, 200) == 128  # blocks 2 and 3 are its window; 5 would need 3 and 4
    shared = sequence(200)
    pages.find_prefix(shared)
    assert has(shared.stored) == [True, True]
    assert has(shared.dense) == [False, False, True, True]
    assert shared.dense[2:] == [pages.dense.find(name) for name in hashes[2:4]]


def test_a_prefix_needs_its_sinks():
    pages, seq = manager(CacheRule(0, 1, False)), sequence(200)
    compute(pages, seq, 200)
    shared = sequence(200)
    assert pages.find_prefix(shared) == 192
    assert has(shared.stored) == [False, True, True, True, True, True]
    assert has(shared.dense) == [True, False, False, False, False, False]
    pages.release(shared)
    pages.dense._forget(pages.dense.find(seq.block_hash(0, b"root")))
    assert found(pages, 200) == 0


def test_a_prefix_needs_every_stored_page():
    pages, seq = manager(CacheRule(0, 0, False)), sequence(200)
    compute(pages, seq, 200)
    pages.stored._forget(pages.stored.find(seq.block_hash(3, b"root")))
    assert found(pages, 200) == 96


def test_output_is_found_like_prompts():
    """The next turn of a chat begins with the answer to the last one."""
    pages, seq = manager(SPARSE), sequence(60)
    for token in range(60, 130):
        compute(pages, seq, len(seq))
        seq.output_ids.append(token)
    pages.release(seq)
    assert found(pages, 200) == 128


@pytest.mark.parametrize(
    ("rule", "caching"), [(PLAIN, False), (CacheRule(1, 0, False, whole_prompts=True), True)]
)
def test_no_prefixes(rule, caching):
    """Nor for prefill=dense, where a block depends on where its prompt ends."""
    pages, seq = manager(rule, caching=caching), sequence(200)
    compute(pages, seq, 200)
    pages.release(seq)
    assert found(pages, 200) == 0
    assert pages.stored.available == pages.stored.size


def test_beginnings_are_kept_longest():
    """A new sequence takes the pages from the end of the old one."""
    pages, seq = manager(PLAIN, stored=6), sequence(192)
    compute(pages, seq, 192)
    pages.release(seq)
    compute(pages, sequence(96, first=1000), 96)
    assert found(pages, 193) == 96


def test_shared_stored_pages_are_not_written_again():
    """Of two sequences that are equal, the second takes the compressed blocks of the first."""
    pages, first, second = manager(SPARSE), sequence(200), sequence(200)
    for end in (64, 128, 192):
        compute(pages, first, end)
    moves = compute(pages, second, 192)  # it came too early to find a prefix
    assert second.stored == first.stored
    assert moves.pack == moves.compress == []
    pages.release(first)
    pages.release(second)
    assert pages.stored.in_use == pages.dense.in_use == 0
