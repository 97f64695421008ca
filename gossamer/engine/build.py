"""From options to a model and a cache in memory: what every rank does at its start."""

import hashlib
from dataclasses import asdict, dataclass, replace

import torch

from gossamer.engine.block_manager import CacheRule
from gossamer.engine.config import EngineConfig, parse_bytes
from gossamer.engine.kv_cache import CacheSize, KVCache, parse_kv, plan_size, rule_of
from gossamer.engine.runner import ModelRunner
from gossamer.kv import Calibration, KVConfig, KVShape
from gossamer.models import Shard, Source, load_decoder, source_fingerprint
from gossamer.ops.kv_block import BLOCK_TOKENS

CPU_MEMORY = 2 << 30
GPU_SHARE = 0.9  # of what is free once the weights are there; the rest is for activations


@dataclass(frozen=True, eq=False)
class Built:
    """What the engine needs to know of rank 0's model. root: names this kind of cache in hashes."""

    source: Source
    kv: KVConfig
    dtype: torch.dtype
    device: torch.device
    size: CacheSize
    max_model_len: int
    root: bytes
    runner: ModelRunner

    @property
    def rule(self) -> CacheRule:
        return rule_of(self.kv, self.dtype)


def build(options: EngineConfig, shard: Shard | None = None) -> Built:
    """Load the model, or this rank's part of it, and allocate its cache.

    Raises ValueError, FileNotFoundError or ImportError, which say what is wrong with the options.
    """
    shard = shard or Shard()
    device = _device_of(options, shard)
    source = options.source()
    config = source.config
    shard.check(config)
    dtype = options.resolved_dtype(device, config.dtype)
    kv = parse_kv(options.kv, dtype)
    kv.block_bytes(config.kv_shape)  # refuses what this head_dim cannot have before weights load
    wanted = options.max_model_len or config.max_positions
    if wanted > config.max_positions:
        raise ValueError(f"max_model_len is {wanted}; must be 2 to {config.max_positions}")
    calibration = _calibration(options, source, kv)
    fold = calibration is not None and kv.v.basis == "pca"
    decoder = load_decoder(
        source,
        dtype=dtype,
        device=device,
        max_len=wanted,
        shard=shard,
        v_basis=calibration.v_basis if fold and calibration is not None else None,
    )
    shape = replace(
        config.kv_shape,
        query_heads=config.query_heads // shard.size,
        kv_heads=config.kv_heads // shard.size,
    )
    memory = _memory(options, device, shard)
    size = plan_size(kv, shape, dtype, memory, options.max_num_seqs, options.prefix_caching)
    max_model_len = _longest(options, kv, dtype, size, wanted)
    cache = _cache(kv, shape, dtype, device, size, calibration, shard)
    runner = ModelRunner(
        decoder, cache, options.max_num_seqs, max_model_len, eager=options.enforce_eager
    )
    root = _root(source, kv, dtype, calibration)
    return Built(source, kv, dtype, device, size, max_model_len, root, runner)


def _device_of(options: EngineConfig, shard: Shard) -> torch.device:
    device = options.resolved_device()
    if device.type == "cuda" and shard.size > 1:
        if shard.size > torch.cuda.device_count():
            raise ValueError(
                f"tensor_parallel_size is {shard.size}; must be at most "
                f"{torch.cuda.device_count()}, the GPUs here"
            )
        device = torch.device("cuda", shard.rank)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device


def _calibration(options: EngineConfig, source: Source, kv: KVConfig) -> Calibration | None:
    """Loaded where the cache needs one, and checked to belong to this model."""
    if not kv.calibrated:
        return None
    path = options.calibration or source.calibration
    if path is None:
        raise ValueError(f"kv is {kv}, which needs a calibration; make one by `gossamer calibrate`")
    return Calibration.load(path, source_fingerprint(source))


def _memory(options: EngineConfig, device: torch.device, shard: Shard) -> int:
    """Bytes of this rank's cache; the same on all of them, as they share page numbers."""
    if options.kv_memory is not None:
        return parse_bytes("kv_memory", options.kv_memory) // shard.size
    if device.type == "cpu":
        return CPU_MEMORY // shard.size
    free, _ = torch.cuda.mem_get_info(device)
    memory = torch.tensor(int(free * GPU_SHARE), device=device)
    if shard.size > 1:
        torch.distributed.all_reduce(memory, torch.distributed.ReduceOp.MIN)
    return int(memory)


def _longest(
    options: EngineConfig, kv: KVConfig, dtype: torch.dtype, size: CacheSize, wanted: int
) -> int:
    """The longest sequence that fits. ValueError when a wanted length does not."""
    rule = rule_of(kv, dtype)
    blocks = size.stored_pages if rule.plain else size.stored_pages + rule.dense_pages
    fits = blocks * BLOCK_TOKENS
    if options.max_model_len is not None and fits < wanted:
        raise ValueError(
            f"max_model_len is {wanted}, and kv_memory holds {fits} tokens of {kv}; "
            "make one smaller or the other larger"
        )
    if fits < 2 or (rule.plain and fits < BLOCK_TOKENS):
        raise ValueError(
            f"kv_memory holds {fits} tokens of {kv}; must hold at least {BLOCK_TOKENS}"
        )
    return min(wanted, fits)


def _cache(
    kv: KVConfig,
    shape: KVShape,
    dtype: torch.dtype,
    device: torch.device,
    size: CacheSize,
    calibration: Calibration | None,
    shard: Shard,
) -> KVCache:
    basis = weights = None
    if calibration is not None and kv.k.basis == "pca":
        basis = shard.part(calibration.k_basis, 1)
    if calibration is not None and (ranks := calibration.rank_weights(kv.k)) is not None:
        weights = shard.part(ranks, 1)
    return KVCache(kv, shape, dtype, device, size, basis, weights)


def _root(
    source: Source, kv: KVConfig, dtype: torch.dtype, calibration: Calibration | None
) -> bytes:
    made = asdict(calibration.manifest) if calibration is not None else None
    return hashlib.blake2b(repr((source.name, str(kv), dtype, made)).encode()).digest()
