"""What the log says of a cache that is going to be used: its bytes, its kernel, its speed."""

import functools
import logging

from gossamer.kv.cache_spec import CacheSpec
from gossamer.kv.speed import DecodeSpeed, decode_speed

log = logging.getLogger("gossamer.kv")

LEAST_HEAD_DIM = 32  # of models that anybody waits for: toys are not measured


def measure_and_log(spec: CacheSpec) -> DecodeSpeed:
    """How this cache decodes here: one line, and a warning where dense would be faster.

    The warning comes once per process for each cache, however many engines or models have it.
    """
    real = spec.shape.head_dim >= LEAST_HEAD_DIM
    speed = decode_speed(spec.config, spec.shape, spec.dtype, spec.device, measure=real)
    share = spec.config.share(spec.shape)
    log.info("KV cache %s: %.1f%% of dense float16, %s", spec.config, 100 * share, speed)
    if speed.slow:
        _warn(str(spec.config), str(spec.device), speed)
    return speed


@functools.cache
def _warn(cache: str, device: str, speed: DecodeSpeed) -> None:
    because = f" ({speed.reason})" if speed.reason and speed.measured else ""
    log.warning("KV cache %s is slow on %s: %s%s", cache, device, speed, because)
