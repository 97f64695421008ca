"""Rotary embeddings: a model's frequencies from its config."""

from collections.abc import Mapping
from typing import Any

import torch

from gossamer.kv.extras import import_extra

TYPES = ("default", "linear", "llama3", "yarn")


def rope_parameters(config: Any) -> Mapping[str, Any]:
    """A config's RoPE settings; ValueError for kinds of RoPE that the decoder does not have."""
    parameters = getattr(config, "rope_parameters", None)
    if not isinstance(parameters, Mapping) or "rope_theta" not in parameters:
        raise ValueError(f"rope_parameters is {parameters!r}; must be a dict with a rope_theta")
    kind = parameters.get("rope_type", "default")
    if kind not in TYPES:
        raise ValueError(f"rope_type is {kind!r}; must be one of {', '.join(TYPES)}")
    own = getattr(config, "partial_rotary_factor", None)
    for part in (own, parameters.get("partial_rotary_factor")):
        if part not in (None, 1.0):
            raise ValueError(
                f"partial_rotary_factor is {part}; must be 1, a rotation of whole heads"
            )
    return parameters


def rope_frequencies(config: Any, head_dim: int) -> tuple[tuple[float, ...], float]:
    """(head_dim / 2 inverse frequencies, factor on cosines and sines) of a transformers config.

    Scaled kinds are computed by transformers itself. ValueError for other kinds, see TYPES.
    """
    parameters = rope_parameters(config)
    kind = parameters.get("rope_type", "default")
    if kind == "default":  # transformers 5 has it in the models' files only
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        inv_freq, scale = 1.0 / (float(parameters["rope_theta"]) ** exponents), 1.0
    else:
        functions = import_extra("transformers.modeling_rope_utils").ROPE_INIT_FUNCTIONS
        try:
            inv_freq, scale = functions[kind](config, torch.device("cpu"))
        except (KeyError, TypeError, ZeroDivisionError) as error:
            raise ValueError(f"rope_parameters {dict(parameters)}: {error!r}") from None
    if inv_freq.shape != (head_dim // 2,) or not bool(inv_freq.isfinite().all()):
        raise ValueError(f"rope_parameters {dict(parameters)}: not {head_dim // 2} frequencies")
    return tuple(inv_freq.tolist()), float(scale)
