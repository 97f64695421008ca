"""Checkpoints that are quantized already: which scheme, and its matrices one by one."""

from collections.abc import Mapping
from typing import Any

from gossamer.models.schemes.awq import AWQ
from gossamer.models.schemes.compressed_tensors import CompressedTensors
from gossamer.models.schemes.fp8 import Fp8
from gossamer.models.schemes.gptq import GPTQ
from gossamer.models.schemes.scheme import Scheme

__all__ = ["KEYS", "SCHEMES", "Scheme", "scheme_of"]

SCHEMES: dict[str, type[AWQ] | type[CompressedTensors] | type[Fp8] | type[GPTQ]] = {
    kind.label: kind for kind in (AWQ, CompressedTensors, Fp8, GPTQ)
}
KEYS = ("quantization_config", "compression_config")  # of config.json, the first that is there


def scheme_of(config: Mapping[str, Any]) -> Scheme | None:
    """The scheme that a config.json names; None for a model that is not quantized.

    Raises ValueError, naming the setting, for schemes that are not supported.
    """
    key = next((key for key in KEYS if config.get(key) is not None), None)
    if key is None:
        return None
    found = config[key]
    if not isinstance(found, dict):
        raise ValueError(f"{key} is {found!r}; must be an object")
    method = found.get("quant_method")
    if method is None and "config_groups" in found:  # as compression_config had it
        method = CompressedTensors.label
    if not isinstance(method, str) or method not in SCHEMES:
        valid = f"must be one of {', '.join(SCHEMES)}"
        raise ValueError(f"{key}: quant_method is {method!r}; {valid}")
    try:
        return SCHEMES[method].of(found)
    except ValueError as error:
        raise ValueError(f"{key} ({method}): {error}") from None
