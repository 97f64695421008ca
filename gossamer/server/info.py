"""What an API process knows of engines that are in another process; it never changes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gossamer.engine import LLM
from gossamer.engine.prompts import checked
from gossamer.kv import KVConfig
from gossamer.kv.rule import CacheRule
from gossamer.kv.speed import DecodeSpeed
from gossamer.ops.kv_block import BLOCK_TOKENS


@dataclass(frozen=True)
class EngineInfo:
    """kv: its cache; asked: as it was asked for, maybe by a percentage.

    stored_bytes, dense_bytes: of a page on all ranks, as the layout keeps it and in a window.
    """

    kv: KVConfig
    asked: KVConfig
    device: str
    dtype: str
    max_model_len: int
    max_num_seqs: int
    longest_prompt: int
    vocab_size: int
    rule: CacheRule
    stored_bytes: int
    dense_bytes: int
    speed: DecodeSpeed | None

    @classmethod
    def of(cls, llm: LLM) -> "EngineInfo":
        engine = llm.engine
        built, config = engine.built, engine.config
        return cls(
            kv=engine.kv,
            asked=KVConfig.of(config.kv, built.dtype),
            device=str(built.device),
            dtype=str(built.dtype).removeprefix("torch."),
            max_model_len=built.max_model_len,
            max_num_seqs=config.max_num_seqs,
            longest_prompt=engine.longest_prompt,
            vocab_size=built.source.config.vocab_size,
            rule=built.rule,
            stored_bytes=built.size.stored_bytes * config.tensor_parallel_size,
            dense_bytes=built.size.dense_bytes * config.tensor_parallel_size,
            speed=built.speed,
        )

    def checked(self, prompt_ids: Sequence[int]) -> tuple[int, ...]:
        """The prompt, if the engine can continue it; else ValueError."""
        return checked(prompt_ids, self.longest_prompt, self.vocab_size)

    def bytes_for(self, tokens: int) -> tuple[int, int]:
        """Bytes of K and V of a sequence of this length: in this cache, and in a plain one."""
        blocks, stored = -(-tokens // BLOCK_TOKENS), self.rule.stored_blocks(tokens)
        mine = stored * self.stored_bytes + (blocks - stored) * self.dense_bytes
        return mine, blocks * self.dense_bytes


@dataclass(frozen=True, eq=False)
class ServerInfo:
    """engines: by the KV spec they were asked for; the first is for requests that name none.

    adapters: names of LoRA adapters at the start.
    """

    engines: dict[str, EngineInfo]
    tokenizer: Any
    started: float
    profiler: bool = False
    adapters: tuple[str, ...] = ()
