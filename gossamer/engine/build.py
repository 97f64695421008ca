"""From a config to a model and a cache in memory: what every rank does at its start."""

from dataclasses import dataclass

import torch

from gossamer.engine.adapters import DEFAULT_RANK
from gossamer.engine.auto import settle
from gossamer.engine.cache_size import CacheSize, cache_size
from gossamer.engine.config import EngineConfig, parse_bytes
from gossamer.engine.identity import cache_root
from gossamer.engine.memory import cache_memory
from gossamer.engine.runner import ModelRunner
from gossamer.engine.warm_up import warm_up
from gossamer.kv import Calibration, KVConfig
from gossamer.kv.announce import measure_and_log
from gossamer.kv.cache_spec import CacheSpec
from gossamer.kv.page_store import PageFolder, PageStore
from gossamer.kv.paged_cache import PagedCache
from gossamer.kv.rule import CacheRule
from gossamer.kv.speed import DecodeSpeed
from gossamer.masks import Mask
from gossamer.models import LoRABank, Shard, Source, load_decoder, source_fingerprint
from gossamer.models.random import RandomSource
from gossamer.ops.kv_block import BLOCK_TOKENS


@dataclass(frozen=True, eq=False)
class Built:
    """What the engine needs to know of rank 0's model.

    root: names this kind of cache in hashes. speed: of decoding; None on other ranks. store: where
    pages are shared with other engines, if they are.
    """

    source: Source
    kv: KVConfig
    dtype: torch.dtype
    device: torch.device
    size: CacheSize
    max_model_len: int
    root: bytes
    rule: CacheRule
    runner: ModelRunner
    speed: DecodeSpeed | None = None
    store: PageStore | None = None


def build(config: EngineConfig, shard: Shard | None = None, gpu: int = 0) -> Built:
    """Load the model, or this rank's part of it, and allocate its cache.

    gpu: that a rank of several has, where they are on GPUs. Raises ValueError, FileNotFoundError or
    ImportError, which say what is wrong with it.
    """
    shard = shard or Shard()
    device = _device_of(config, shard, gpu)
    source = config.source()
    model = source.config
    shard.check(model)
    dtype = config.resolved_dtype(device, model.dtype)
    kv, calibration = cache_config(config, source, dtype, shard)
    wanted = config.max_model_len or model.max_positions
    if wanted > model.max_positions:
        raise ValueError(f"max_model_len is {wanted}; must be 2 to {model.max_positions}")
    prompt_mask = _prompt_mask(config, model.query_heads, device)
    store = _open_store(config, CacheRule.of(kv, dtype, prompt_mask))
    v_basis = None if calibration is None else calibration.basis("v", kv.v)
    decoder = load_decoder(
        source,
        dtype=dtype,
        device=device,
        max_len=wanted,
        shard=shard,
        v_basis=v_basis,
        weights=config.weights,
    )
    bank = None
    if config.max_loras:
        rank = config.max_lora_rank or DEFAULT_RANK
        bank = LoRABank(model, shard, config.max_loras, rank, dtype, device, v_basis)
    spec = CacheSpec.of(kv, shard.kv_shape(model), dtype, device, calibration, prompt_mask)
    speed = measure_and_log(spec) if shard.rank == 0 else None  # before all memory is taken
    memory = cache_memory(config, decoder, bank)
    prefixes = config.prefix_caching and spec.rule.shares_prefixes
    size = cache_size(spec, memory, config.max_num_seqs, prefixes)
    max_model_len = _longest(config, spec, size, wanted)
    cache = PagedCache(spec, size.stored_pages, size.dense_pages)
    runner = ModelRunner(
        *(decoder, cache, config.max_num_seqs, max_model_len), eager=config.enforce_eager, bank=bank
    )
    if runner.graphs is not None:
        warm_up(runner, config.max_num_seqs, config.max_num_batched_tokens)
    what = (source, kv, dtype, device, calibration, config.weights)
    root = b"" if store is None else cache_root(*what)  # else all pages are this process's own
    return Built(
        *(source, kv, dtype, device, size, max_model_len, root, spec.rule, runner, speed, store)
    )


def _device_of(config: EngineConfig, shard: Shard, gpu: int) -> torch.device:
    device = config.resolved_device()
    if device.type == "cuda" and shard.size > 1:
        count = torch.cuda.device_count()
        if gpu >= count:
            raise ValueError(f"rank {shard.rank} needs cuda:{gpu}, and there are {count} GPUs here")
        device = torch.device("cuda", gpu)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device


def cache_config(
    config: EngineConfig, source: Source, dtype: torch.dtype, shard: Shard | None = None
) -> tuple[KVConfig, Calibration | None]:
    """The cache with all bits known, and the calibration that it needs, if any.

    shard: to read its KV heads alone, for a config that was checked for the whole model. Raises
    ValueError for one that this model cannot have, before its weights load.
    """
    kv = KVConfig.of(config.kv, dtype)
    if kv.resolved:
        kv.block_bytes(source.config.kv_shape)  # refuses what this head_dim cannot have
    if not kv.calibrated:
        return kv, None
    calibration = _calibration(config, source, kv, shard or Shard())
    kv = kv.resolve(calibration)
    kv.block_bytes(source.config.kv_shape)
    calibration.rank_weights(kv.k)  # refuses a policy that it was not made for
    for name, side in (("k", kv.k), ("v", kv.v)):
        calibration.basis(name, side)  # and codes
    return kv, calibration


def sized_cache(config: EngineConfig, source: Source, dtype: torch.dtype) -> KVConfig:
    """The cache with all bits known, for whoever asks for its bytes before there is an engine.

    A preset is settled, and a model calibrated that was not before (see gossamer.engine.auto).

    Raises ValueError for one that cannot be; whose calibration it is, `cache_config` checks.
    """
    config, _ = settle(config)
    kv = KVConfig.of(config.kv, dtype)
    path = config.calibration or source.calibration
    if kv.resolved or (path is None and not isinstance(source, RandomSource)):
        return kv.resolve(None)
    shape = source.config.kv_shape
    known = Calibration.blank(shape, source.name) if path is None else Calibration.load(path)
    return kv.resolve(known)


def _calibration(config: EngineConfig, source: Source, kv: KVConfig, shard: Shard) -> Calibration:
    """Checked to belong to this model; of random weights, there is nothing to measure."""
    path = config.calibration or source.calibration
    if path is not None and shard.size > 1:  # to check it takes K and V of all heads
        return Calibration.load(path, heads=shard.kv_heads(source.config))
    if path is not None:
        return Calibration.load(path, source_fingerprint(source))
    if isinstance(source, RandomSource):
        return Calibration.blank(shard.kv_shape(source.config), source.name)
    raise ValueError(f"kv is {kv}, which needs a calibration; make one by `gossamer calibrate`")


def _prompt_mask(config: EngineConfig, heads: int, device: torch.device) -> Mask | None:
    """On the device. Raises ValueError for one that prompts of any length cannot have."""
    mask = config.prompt_mask
    if mask is None:
        return None
    if mask.lengths is not None or mask.batch is not None:
        bound = f"lengths {mask.lengths}" if mask.batch is None else f"{mask.batch} batch elements"
        raise ValueError(f"prompt_mask is for {bound}; must be for prompts of any length, alone")
    if mask.heads not in (None, heads):
        raise ValueError(f"prompt_mask is for {mask.heads} heads; must be for all, or for {heads}")
    if mask.heads is not None and config.tensor_parallel_size > 1:
        raise ValueError("prompt_mask tells heads apart; must be for all with tensor parallelism")
    return mask.to(device)


def _longest(config: EngineConfig, spec: CacheSpec, size: CacheSize, wanted: int) -> int:
    """The longest sequence that fits. ValueError when a wanted length does not."""
    rule, kv = spec.rule, spec.config
    blocks = size.stored_pages if rule.plain else size.stored_pages + rule.dense_pages
    fits = blocks * BLOCK_TOKENS
    if config.max_model_len is not None and fits < wanted:
        raise ValueError(
            f"max_model_len is {wanted}, and kv_memory holds {fits} tokens of {kv}; "
            "make one smaller or the other larger"
        )
    if fits < 2 or (rule.plain and fits < BLOCK_TOKENS):
        raise ValueError(
            f"kv_memory holds {fits} tokens of {kv}; must hold at least {BLOCK_TOKENS}"
        )
    return min(wanted, fits)


def _open_store(config: EngineConfig, rule: CacheRule) -> PageStore | None:
    """Raises ValueError for a cache whose pages cannot be shared, and for what is no folder."""
    if config.kv_transfer is None:
        return None
    if not rule.shares_prefixes:
        raise ValueError(
            "kv_transfer needs a cache whose prompts share prefixes: no prefill=dense "
            "and no prompt_mask"
        )
    if isinstance(config.kv_transfer, PageStore):
        return config.kv_transfer
    limit = parse_bytes("kv_transfer_size", config.kv_transfer_size)
    return PageFolder(config.kv_transfer, limit)
