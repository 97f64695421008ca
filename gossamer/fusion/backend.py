"""The backend of torch.compile: `torch.compile(model, backend="gossamer")`."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from gossamer.fusion.cache import PlanCache, Subject
from gossamer.fusion.capture import Captured, NotFusibleError, capture
from gossamer.fusion.cost import predicted_plan
from gossamer.fusion.patterns import tensor_of
from gossamer.fusion.plan import Plan
from gossamer.fusion.prepared_weights import Watch
from gossamer.fusion.program import Program, program_of
from gossamer.fusion.remainder import MODES, REMAINDERS, compile_rest, who_compiles
from gossamer.masks import DenseMask, Mask
from gossamer.ops.checks import one_of

log = logging.getLogger("gossamer.fusion")


@dataclass(frozen=True, eq=False)
class Options:
    """How a model is compiled; `torch.compile(..., options={...})` takes the same names.

    mask: what every self-attention sees, beside what the model says itself. attention: whether
    attention is replaced; fuse: whether other operators are. plan: a plan's key, instead of the
    tuned or predicted one. cache: whether to look for a tuned one on disk. remainder: what compiles
    the rest, inductor or eager; auto is Inductor on a GPU. mode: Inductor's, as of torch.compile.
    """

    mask: Any = None
    attention: bool = True
    fuse: bool = True
    plan: str | None = None
    cache: bool = True
    remainder: str = "auto"
    mode: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.mask, Tensor):
            object.__setattr__(self, "mask", DenseMask(self.mask))
        if self.mask is not None and not isinstance(self.mask, Mask):
            name = type(self.mask).__name__
            raise TypeError(f"mask is {name}; must be a gossamer.masks.Mask or a bool tensor")
        one_of("remainder", self.remainder, REMAINDERS)
        if self.mode is not None:
            one_of("mode", self.mode, MODES)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Options":
        """Raises ValueError for names that are no options."""
        valid = [f.name for f in fields(cls)]
        for name in values:
            one_of("option", name, valid)
        return cls(**values)


def gossamer(
    module: GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | Options | None = None,
    report: Callable[[Program], None] = lambda program: None,
) -> Callable[..., Any]:
    """Compile a graph of Dynamo's.

    What cannot be fused goes to Inductor or eager as it is, with one line in the log. Raises
    RuntimeError for training, ValueError or TypeError for bad options.
    """
    given = options if isinstance(options, Options) else Options.of({**(options or {})})
    given = given if mode is None else replace(given, mode=mode)
    _say_breaks()
    try:
        return Compiled(module, example_inputs, given, report)
    except NotFusibleError as reason:
        if given.mask is not None:
            raise ValueError(f"a mask is set, and this graph cannot have it: {reason}") from reason
        log.warning("nothing is fused: %s", reason)
        return compile_rest(module, example_inputs, given.remainder, given.mode, _place(module))


NO_OPERATORS = "no attention, GEMM, activation or norm of the graph is recognised"


class Compiled:
    """A graph under a plan; it is made again where a mask among its buffers changes."""

    def __init__(
        self,
        module: GraphModule,
        example_inputs: Sequence[Any],
        options: Options,
        report: Callable[[Program], None],
    ) -> None:
        self._module, self._options, self._report = module, options, report
        self._compile(example_inputs)

    def __call__(self, *args: Any) -> Any:
        if self._masks.stale(args):
            self._compile(args)
        self._program.weights.refresh(args)
        return self._run(*args)

    def _compile(self, example_inputs: Sequence[Any]) -> None:
        options = self._options
        captured = capture(self._module, example_inputs, options.mask, attention=options.attention)
        if not captured.operators:
            log.warning("nothing is fused: %s", NO_OPERATORS)
        self._masks = _watched(captured)
        plan = _plan(captured, options)
        try:
            self._program = program_of(captured, plan)
        except (TypeError, ValueError, RuntimeError) as error:  # of an op that refuses arguments
            raise NotFusibleError(f"{type(error).__name__}: {error}") from error
        self._report(self._program)
        self._run = compile_rest(
            *(self._program.module, example_inputs, options.remainder, options.mode),
            captured.device,
        )


def _plan(captured: Captured, options: Options) -> Plan:
    count = len(captured.operators)
    if options.plan is not None:
        return Plan.decode(options.plan, count)
    if not options.fuse:
        return Plan.unfused(count)
    tuned = PlanCache().get(subject_of(captured, options)) if options.cache else None
    if tuned is not None and tuned.operators == count:
        return tuned
    return predicted_plan(captured)


def subject_of(captured: Captured, options: Options) -> Subject:
    """By what a plan of this graph is kept."""
    rest = (who_compiles(options.remainder, captured.device), options.mode, options.attention)
    return Subject.of(captured, options.mask, str(rest))


_told: set[str] = set()  # of graph breaks


def _say_breaks() -> None:
    """A line for each graph break that Dynamo has met until now."""
    for reason in torch._dynamo.utils.counters["graph_break"]:
        if reason not in _told:
            _told.add(reason)
            line = " ".join(str(reason).split())
            log.warning("the graph breaks, each part is fused by itself: %s", line[:200])


def _place(module: GraphModule) -> torch.device | None:
    """The device of a graph's inputs."""
    tensors = map(tensor_of, module.graph.find_nodes(op="placeholder"))
    return next((tensor.device for tensor in tensors if tensor is not None), None)


def _watched(captured: Captured) -> Watch:
    """The buffers that masks were read from."""
    watch = Watch()
    for place, node in enumerate(captured.module.graph.find_nodes(op="placeholder")):
        if node in captured.constants.used:
            watch.note(place, captured.static[node])
    return watch
