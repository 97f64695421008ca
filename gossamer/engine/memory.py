"""How much memory the cache gets: on a GPU, what steps and their graphs leave."""

import torch

from gossamer.engine.config import EngineConfig, parse_bytes
from gossamer.models import Decoder, LoRABank

CPU_MEMORY = 2 << 30
GPU_SHARE = 0.95  # of what steps leave; torch's allocator keeps pieces that nothing else fits into
# Bytes of sampling for each number of float32 logits: the logits themselves, weights, noise, order.
SAMPLING = 16
GRAPHS = 1 << 30  # their kernels' arguments, and workspaces of cuBLAS
MOST_TOKENS = 1 << 15  # that are tried; steps of more grow with them, and nobody computes so many


def cache_memory(config: EngineConfig, decoder: Decoder, bank: LoRABank | None = None) -> int:
    """Bytes of this rank's cache; the same on all of them, as they share page numbers.

    Raises ValueError where a GPU has no room for any.
    """
    ranks, device = decoder.shard.size, decoder.device
    if config.kv_memory is not None:
        return parse_bytes("kv_memory", config.kv_memory) // ranks
    if device.type == "cpu":
        return CPU_MEMORY // ranks
    steps = step_bytes(decoder, config.max_num_batched_tokens, config.max_num_seqs, bank)
    free, _ = torch.cuda.mem_get_info(device)
    memory = torch.tensor(int(GPU_SHARE * (free - steps)), device=device)
    if ranks > 1:
        torch.distributed.all_reduce(memory, torch.distributed.ReduceOp.MIN)
    if memory <= 0:
        raise ValueError(
            f"{free / 1e9:.1f} GB of the GPU's memory are free, and steps of "
            f"{config.max_num_batched_tokens} tokens take {steps / 1e9:.1f}; "
            "make max_num_batched_tokens or max_num_seqs smaller"
        )
    return int(memory)


@torch.inference_mode()
def step_bytes(decoder: Decoder, tokens: int, sequences: int, bank: LoRABank | None = None) -> int:
    """What a step of so many tokens takes beyond weights and cache, measured; twice, as graphs have
    memory of their own.
    """
    tokens = min(tokens, MOST_TOKENS)
    torch.cuda.empty_cache()  # what loading left
    torch.cuda.reset_peak_memory_stats(decoder.device)
    before = torch.cuda.memory_allocated(decoder.device)
    zeros = torch.zeros(tokens, dtype=torch.int64, device=decoder.device)  # ids, and positions
    lora = None if bank is None else bank.masked(zeros, single=False)
    hidden = decoder.forward(zeros, zeros, lambda _, projection: projection.rotated()[0], lora)
    decoder.logits(hidden[-sequences:])
    taken = torch.cuda.max_memory_allocated(decoder.device) - before
    torch.cuda.empty_cache()
    return 2 * taken + SAMPLING * sequences * decoder.config.vocab_size + GRAPHS
