"""Models: where their weights come from, and the one decoder that computes them."""

from gossamer.models.adapter import Adapter, read_adapter
from gossamer.models.config import ModelConfig
from gossamer.models.decoder import Attend, Decoder, Projection, on_rotated
from gossamer.models.embedded import EMBEDDED
from gossamer.models.loading import load_decoder, source_fingerprint
from gossamer.models.lora import LoRABank
from gossamer.models.opening import open_model
from gossamer.models.shard import Shard
from gossamer.models.source import Source

__all__ = [
    "EMBEDDED",
    "Adapter",
    "Attend",
    "Decoder",
    "LoRABank",
    "ModelConfig",
    "Projection",
    "Shard",
    "Source",
    "load_decoder",
    "on_rotated",
    "open_model",
    "read_adapter",
    "source_fingerprint",
]
