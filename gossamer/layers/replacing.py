"""A transformers model with its norms and MLPs replaced by Gossamer's layers."""

from torch import nn

from gossamer.layers.gated_mlp import GatedMLP
from gossamer.layers.rms_norm import RMSNorm


def replace_layers(model: nn.Module, *, use_custom_kernels: bool = True) -> int:
    """Put GatedMLP and RMSNorm in place of a model's own; the number of modules replaced.

    Weights are shared, nothing is copied but gate and up, which move into one matrix. What
    computes something else is left as it is: each replacement is compared with its original.
    """
    replaced = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            ours = _replacement(child, use_custom_kernels)
            if ours is not None:
                setattr(parent, name, ours.train(child.training))
                replaced += 1
    return replaced


def _replacement(module: nn.Module, use_custom_kernels: bool) -> nn.Module | None:
    if isinstance(module, (GatedMLP, RMSNorm)):
        return None
    for layer in (GatedMLP, RMSNorm):
        try:
            return layer.from_transformers(module, use_custom_kernels=use_custom_kernels)
        except ValueError:
            continue
    return None
