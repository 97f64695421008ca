"""One sequence on its way through the engine: its tokens, and where its K and V lie."""

import hashlib
import sys
from array import array
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field
from enum import Enum

from gossamer.engine.sampling_params import SamplingParams
from gossamer.kv.pages import NO_PAGE
from gossamer.models.lora import NO_ADAPTER
from gossamer.ops.kv_block import BLOCK_TOKENS


class Status(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(eq=False)
class Sequence:
    """State of one of the n completions of a request.

    limit: the most output tokens. pending: how many more are sampled than output_ids has, by steps
    that are on their way: the host will know them. computed: how many of the first tokens have K
    and V in the cache; cached: how many of them came from the prefix cache. row: its row in the
    runner's page tables while it runs. stored, dense: pages of its blocks of 32 tokens (see
    BlockManager), NO_PAGE where it has none. slot, salt: of its LoRA adapter, see Loaded.
    """

    request_id: str
    index: int
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    seed: int
    limit: int = sys.maxsize
    output_ids: list[int] = field(default_factory=list)
    pending: int = 0
    status: Status = Status.WAITING
    computed: int = 0
    cached: int = 0
    preemptions: int = 0
    row: int = NO_PAGE
    stored: list[int] = field(default_factory=list)
    dense: list[int] = field(default_factory=list)
    slot: int = NO_ADAPTER
    salt: bytes = b""
    _hashes: list[bytes] = field(default_factory=list)

    def __len__(self) -> int:
        """Tokens, with the pending ones."""
        return len(self.prompt_ids) + len(self.output_ids) + self.pending

    def tokens(self, start: int, end: int) -> list[int]:
        """Tokens start to end - 1 of prompt and output together, as far as they are known."""
        prompt = len(self.prompt_ids)
        if start >= prompt:
            return self.output_ids[start - prompt : end - prompt]
        return [*self.prompt_ids[start:end], *self.output_ids[: max(0, end - prompt)]]

    @property
    def wanted(self) -> int:
        """Tokens whose K and V are to be computed before the next one can be sampled."""
        if len(self.output_ids) + self.pending >= self.limit:
            return 0
        return len(self) - self.computed

    def block_hash(self, block: int, root: bytes) -> bytes:
        """Of all tokens up to the end of a complete block, and of what else K and V depend on.

        root: stands for the cache's kind.
        """
        while len(self._hashes) <= block:
            done = len(self._hashes)
            before = self._hashes[-1] if done else root + self.salt
            ids = self.tokens(done * BLOCK_TOKENS, (done + 1) * BLOCK_TOKENS)
            assert len(ids) == BLOCK_TOKENS, f"block {done} is not complete"
            self._hashes.append(_digest(before, ids))
        return self._hashes[block]


def _digest(before: bytes, ids: Tokens[int]) -> bytes:
    return hashlib.blake2b(before + array("q", ids).tobytes(), digest_size=16).digest()
