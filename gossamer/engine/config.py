"""What an engine is to be: model, cache, device, sizes."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike, fspath
from typing import Any

import torch

from gossamer.kv import KVConfig
from gossamer.kv.auto import Preset
from gossamer.kv.page_store import PageStore
from gossamer.masks import Mask
from gossamer.models import Source, open_model
from gossamer.models.precision import WEIGHTS
from gossamer.ops.checks import one_of
from gossamer.ops.kv_block import BLOCK_TOKENS

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
KV_ROLES = ("prefill", "decode", "both")
UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


LAUNCHER_NAMES = ("auto", "spawn", "torchrun", "ray")


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Raises TypeError for unknown options and ValueError for values out of range.

    model: a built-in name, a path, or, for one rank, what `open_model` opened. kv: a spec (see
    gossamer.kv.config), a preset like "auto" (see gossamer.kv.auto) or a KVConfig. dtype: float32,
    float16, bfloat16 or auto (the checkpoint's on a GPU, float32 on a CPU). device: cpu, cuda,
    cuda:1, ... or auto. max_model_len: the longest sequence, prompt and output; None for what model
    and memory allow. kv_memory: bytes or "40GB", "2GiB"; None for what steps leave of a
    GPU, 2 GiB on a CPU. max_num_batched_tokens: tokens computed in one step at most. weights:
    float, int8, fp8, int4, or auto for as the checkpoint has them (docs/weights.md). calibration: a
    file made by `gossamer calibrate`, for coded rows, bases and weighted ranks; by default one is
    made at the first use of a model, on calibration_text or on text that the model writes, and
    kept (see gossamer.kv.calibration_files). enforce_eager: no CUDA graphs. prompt_mask:
    one of gossamer.masks, for sparse prefill: what tokens of a prompt see of those before them;
    tokens after the prompt see all. Prompts then share no prefixes. async_scheduling: prepare a
    step while the device computes the one before; outputs are the same. None for where that pays:
    on one GPU (a CPU computes in the thread that would prepare, and ranks wait for each other).
    launcher: what starts the ranks of tensor_parallel_size: spawn (processes on this host),
    torchrun (started already, see gossamer.engine.launch_torchrun), ray (actors on a cluster), or
    auto: torchrun in a process that it started, else spawn.
    kv_transfer: a folder, or another PageStore, through which engines share pages of prompts, see
    docs/disaggregation.md. kv_role: prefill publishes there, decode looks prompts up, both does
    both. kv_transfer_size: bytes of the folder at most.
    lora: folders of LoRA adapters by the names that requests use. max_loras: adapters at a time;
    None for those of `lora`, so that none can be added. max_lora_rank: of each; None for the
    largest of `lora`, or 16.
    """

    model: str | PathLike[str] | Source
    kv: str | KVConfig = "dense"
    dtype: str | torch.dtype = "auto"
    device: str = "auto"
    max_model_len: int | None = None
    kv_memory: int | str | None = None
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    tensor_parallel_size: int = 1
    weights: str = "auto"
    calibration: str | PathLike[str] | None = None
    calibration_text: str | PathLike[str] | None = None
    seed: int = 0
    enforce_eager: bool = False
    prefix_caching: bool = True
    random_weights: bool = False
    prompt_mask: Mask | None = None
    async_scheduling: bool | None = None
    launcher: str = "auto"
    kv_transfer: str | PathLike[str] | PageStore | None = None
    kv_role: str = "both"
    kv_transfer_size: int | str = "4GiB"
    lora: Mapping[str, str | PathLike[str]] = field(default_factory=dict)
    max_loras: int | None = None
    max_lora_rank: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "tensor_parallel_size"):
            _at_least(name, getattr(self, name), 1)
        _at_least("max_num_batched_tokens", self.max_num_batched_tokens, BLOCK_TOKENS)
        _at_least("seed", self.seed, 0)
        if self.max_model_len is not None:
            _at_least("max_model_len", self.max_model_len, 2)
        if isinstance(self.dtype, str):
            one_of("dtype", self.dtype, ("auto", *DTYPES))
        else:
            one_of("dtype", str(self.dtype).removeprefix("torch."), DTYPES)
        if self.kv_memory is not None:
            parse_bytes("kv_memory", self.kv_memory)
        if self.calibration is not None and self.calibration_text is not None:
            raise ValueError("calibration and calibration_text are both given; must be one of them")
        one_of("launcher", self.launcher, LAUNCHER_NAMES)
        one_of("weights", self.weights, WEIGHTS)
        Preset.parse(self.kv)
        mask: Any = self.prompt_mask
        if mask is not None and not isinstance(mask, Mask):
            kind = type(mask).__name__
            raise TypeError(f"prompt_mask is {kind}; must be a gossamer.masks.Mask, or None")
        if self.tensor_parallel_size > 1 and not isinstance(self.model, str | PathLike):
            raise ValueError("model is open already; must be a name or a path for several ranks")
        if self.async_scheduling not in (None, False, True):
            raise ValueError(
                f"async_scheduling is {self.async_scheduling!r}; must be True, False or None"
            )
        if self.async_scheduling and self.tensor_parallel_size > 1:
            raise ValueError(
                f"async_scheduling is True with tensor_parallel_size {self.tensor_parallel_size}; "
                "must be None or False for several ranks"
            )
        self._check_transfer()
        self._check_lora()

    def _check_lora(self) -> None:
        lora: Any = self.lora
        if not isinstance(lora, Mapping):
            raise TypeError(f"lora is {type(lora).__name__}; must be folders by name")
        for name in lora:
            check_adapter_name(name)
        if self.max_loras is not None:
            _at_least("max_loras", self.max_loras, len(lora))
        if self.max_lora_rank is not None:
            _at_least("max_lora_rank", self.max_lora_rank, 1)

    def _check_transfer(self) -> None:
        one_of("kv_role", self.kv_role, KV_ROLES)
        parse_bytes("kv_transfer_size", self.kv_transfer_size)
        if self.kv_transfer is None:
            if self.kv_role != "both":
                raise ValueError(f"kv_role is {self.kv_role!r} without kv_transfer, a folder")
            return
        store: Any = self.kv_transfer
        if not isinstance(store, str | PathLike | PageStore):
            raise TypeError(f"kv_transfer is {type(store).__name__}; must be a path or a PageStore")
        if not self.prefix_caching:
            raise ValueError("kv_transfer needs the prefix cache; prefix_caching must be True")
        if self.tensor_parallel_size > 1:
            raise ValueError(
                f"tensor_parallel_size is {self.tensor_parallel_size}; must be 1 with kv_transfer"
            )

    def source(self) -> Source:
        """The model, opened. Raises what `open_model` raises."""
        if not isinstance(self.model, str | PathLike):
            return self.model
        return open_model(fspath(self.model), self.random_weights, self.seed)

    @property
    def device_type(self) -> str:
        """cpu or cuda; takes no memory there."""
        if self.device == "auto":
            return "cuda" if torch.cuda.is_available() else "cpu"
        return self.device.split(":")[0]

    def resolved_device(self) -> torch.device:
        """Raises ValueError for a device that is not there."""
        try:
            device = torch.device(self.device_type if self.device == "auto" else self.device)
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError) as error:  # AssertionError: torch without CUDA
            reason = str(error).strip().splitlines()[0]
            raise ValueError(f"device {self.device!r} cannot be used: {reason}") from None
        if str(device) == "cuda":  # without a number
            device = torch.device("cuda", torch.cuda.current_device())
        return device

    @property
    def resolved_launcher(self) -> str:
        """One of LAUNCHER_NAMES, and not auto."""
        if self.launcher != "auto":
            return self.launcher
        return "torchrun" if torch.distributed.is_torchelastic_launched() else "spawn"

    def overlaps(self, device: torch.device) -> bool:
        """Whether scheduling is asynchronous."""
        if self.async_scheduling is None:
            return device.type == "cuda" and self.tensor_parallel_size == 1
        return self.async_scheduling

    def resolved_dtype(self, device: torch.device, checkpoint: str | None) -> torch.dtype:
        """The type to compute in; `checkpoint` is what the weights are kept in, if known."""
        if isinstance(self.dtype, torch.dtype):
            return self.dtype
        if self.dtype != "auto":
            return DTYPES[self.dtype]
        if device.type == "cpu":
            return torch.float32
        return DTYPES.get(checkpoint or "bfloat16", torch.bfloat16)


def check_adapter_name(name: Any) -> None:
    """Raises ValueError."""
    if not isinstance(name, str) or not name.isprintable() or not 1 <= len(name) <= 200:
        raise ValueError(f"the adapter's name is {name!r}; must be 1 to 200 printable characters")


def parse_bytes(name: str, value: int | str) -> int:
    """`40GB`, `2GiB`, `512 MB` or a number of bytes. Raises ValueError."""
    number: Any = value
    if isinstance(value, str):
        match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?((?:[KMG]I?)?B)?", value.strip().upper())
        number = int(float(match[1]) * UNITS[match[2] or "B"]) if match else None
    if type(number) is not int or number < 1:
        raise ValueError(f"{name} is {value!r}; must be positive bytes, like 2GiB or 40GB")
    return number


def _at_least(name: str, value: Any, least: int) -> None:
    if type(value) is not int or value < least:
        raise ValueError(f"{name} is {value!r}; must be an integer of at least {least}")
