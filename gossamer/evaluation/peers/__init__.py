"""Other cache methods as subjects: the same model, the same tokens, the same count of bytes.

A peer is named by a spec, `name:number[,option=value]`:

    exact                       the model as it is, with float16 counted: the control
    kivi:4                      4 bits, the last 128 tokens exact (window=)
    turboquant:4                4 bits (3, 2) after a rotation, the last 32 tokens exact (window=)
    fp8, int8                   8 bits and a scale for each token and head, none exact (window=)
    mustafar:0.5                half of each token's entries, the last 32 tokens exact (window=)
    streaming:0.25              the first 4 (sinks=) and the latest of a quarter of the tokens
    snapkv:0.25                 a quarter of the prompt (window=, kernel=), chosen when it has been
                                read, or all of it but the last before= tokens
    expected:0.25               a quarter of the prompt, by expected attention (sinks=, before=)
    quest:0.25                  all tokens in memory; each query reads a quarter of them, by pages
                                (page=), but for the first 2 layers (dense=), which read all
    think:0.5                   half of K's channels pruned (window=)
    quantized:4                 transformers' QuantizedCache (backend=quanto or hqq)
    kvpress-snapkv:0.25         the same methods by the package kvpress: snapkv, streaming,
                                expected, think

To add one: a file with its Method (or Peer), its line here and in `PEERS`, and its oracle in
tests/evaluation.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from gossamer.evaluation.peers import kvpress, quantized_cache
from gossamer.evaluation.peers.eviction import Expected, SnapKV, Streaming
from gossamer.evaluation.peers.kivi import Kivi
from gossamer.evaluation.peers.method import Exact, Method
from gossamer.evaluation.peers.mustafar import Mustafar
from gossamer.evaluation.peers.per_token import LARGEST, PerToken
from gossamer.evaluation.peers.quest import Quest
from gossamer.evaluation.peers.spec import Number, PeerSpec, parse_spec
from gossamer.evaluation.peers.subject import MethodPeer, Peer
from gossamer.evaluation.peers.think import ThinKChannels
from gossamer.evaluation.peers.turboquant import TurboQuant

__all__ = ["DEFAULT_SPECS", "PEERS", "Build", "Factory", "Peer", "available", "parse_peer"]

Build = Callable[[Any, Any], Peer]  # (model, tokenizer) -> the peer

DEFAULT_SPECS = (
    "kivi:4", "kivi:2", "turboquant:4", "turboquant:3", "fp8", "int8", "mustafar:0.5",
    "mustafar:0.7", "streaming:0.25", "snapkv:0.25", "expected:0.25", "quest:0.25", "think:0.5",
    "quantized:4",
)  # fmt: skip


@dataclass(frozen=True)
class Factory:
    """Calling it with a spec checks the spec and gives what builds the peer on a model.

    settings: the dataclass of the method. peer: (model, tokenizer, name, settings) -> Peer.
    number: type of what follows the name. why_not: why it cannot run here.
    """

    settings: Callable[..., Any]
    peer: Callable[[Any, Any, str, Any], Peer] = MethodPeer
    number: type[Number] | None = float
    options: tuple[tuple[str, type], ...] = ()
    why_not: Callable[[], str] = str

    def __call__(self, spec: PeerSpec) -> Build:
        *number, given = spec.arguments(self.number, dict(self.options))
        settings = self.settings(*number, **given)

        def build(model: Any, tokenizer: Any) -> Peer:
            return self.peer(model, tokenizer, spec.text, settings)

        return build


def _method(method: Callable[..., Method], *options: str, number: type[Number] = float) -> Factory:
    return Factory(method, number=number, options=tuple((name, int) for name in options))


PEERS: dict[str, Factory] = {
    "exact": Factory(Exact, number=None),
    "kivi": _method(Kivi, "window", number=int),
    "mustafar": _method(Mustafar, "window"),
    "streaming": _method(Streaming, "sinks"),
    "snapkv": _method(SnapKV, "window", "kernel", "before"),
    "expected": _method(Expected, "sinks", "before"),
    "quest": _method(Quest, "page", "dense"),
    "think": _method(ThinKChannels, "window"),
    "turboquant": _method(TurboQuant, "window", number=int),
    "quantized": Factory(
        quantized_cache.QuantizedSettings,
        quantized_cache.QuantizedCachePeer,
        int,
        (("backend", str),),
        quantized_cache.why_neither,
    ),
}
PEERS |= {
    kind: Factory(partial(PerToken, kind), number=None, options=(("window", int),))
    for kind in LARGEST
}
PEERS |= {
    f"kvpress-{press}": Factory(
        partial(kvpress.PressSettings, press), kvpress.PressPeer, why_not=kvpress.why_not
    )
    for press in kvpress.PRESSES
}


def parse_peer(spec: str) -> Build:
    """What builds the peer that `spec` names; see the module. Raises ValueError.

    Building raises ImportError where a package is missing, and ValueError for a model that the
    method cannot store.
    """
    try:
        parsed = parse_spec(spec, PEERS)
        return PEERS[parsed.name](parsed)
    except ValueError as error:
        raise ValueError(f"peer {spec!r}: {error}") from None


def available() -> dict[str, str]:
    """Of every name in PEERS why it cannot run here; empty where it can."""
    return {name: factory.why_not() for name, factory in PEERS.items()}
