"""Modules made of Gossamer's operators: drop-in for those of transformers.

The engine's models use them.

`use_custom_kernels=False` computes the same in plain torch; so does a call that needs gradients,
which the operators do not have.
"""

from gossamer.layers.gated_mlp import GatedMLP
from gossamer.layers.quantized_linear import QuantizedLinear
from gossamer.layers.replacing import replace_layers
from gossamer.layers.rms_norm import RMSNorm
from gossamer.layers.rotary import RotaryEmbedding, rope_tables

__all__ = [
    "GatedMLP",
    "QuantizedLinear",
    "RMSNorm",
    "RotaryEmbedding",
    "replace_layers",
    "rope_tables",
]
