"""One call: a model, compiled with fusion, under a mask of its own."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from gossamer.fusion.backend import Options, gossamer
from gossamer.fusion.program import Program
from gossamer.fusion.tuning import tune as tune_model
from gossamer.masks import Mask

MOST_RECOMPILES = 16  # of a piece of code, beyond one for each shape


class OptimizedModel:
    """A compiled model; anything but a call goes to the model itself."""

    def __init__(self, model: nn.Module, options: Options, budget: float | None = None) -> None:
        self.model, self.budget = model, budget
        self._options = options
        self._shapes: set[Any] = set()
        self._programs: list[Program] = []

        def backend(module: Any, example_inputs: Any) -> Callable[..., Any]:
            return gossamer(module, example_inputs, options=options, report=self._programs.append)

        self._compiled = torch.compile(model, backend=backend, dynamic=False)

    @property
    def plans(self) -> list[Program]:
        """The plans of the graphs that were compiled until now; each has `explain()`."""
        return list(self._programs)

    def explain(self) -> str:
        """All plans in words. Call the model first: graphs are compiled at a first call."""
        return "\n\n".join(program.explain() for program in self._programs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As the model. RuntimeError in training mode, or where gradients are recorded."""
        self._refuse_training()
        shapes = _shapes(args, kwargs)
        if shapes in self._shapes:
            return self._compiled(*args, **kwargs)
        if self.budget is not None:
            tune_model(self.model, args, kwargs, self._options, self.budget)
        with torch._dynamo.config.patch(_limits(len(self._shapes))):
            out = self._compiled(*args, **kwargs)
        self._shapes.add(shapes)
        if self._options.mask is not None:
            self._check_mask_applied()
        return out

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["model"], name)

    def _refuse_training(self) -> None:
        if self.model.training:
            raise RuntimeError("gossamer.optimize is for inference; call model.eval() first")
        if torch.is_grad_enabled() and any(p.requires_grad for p in self.model.parameters()):
            raise RuntimeError(
                "gossamer.optimize is for inference and gradients are recorded; call the model "
                "under torch.no_grad() or torch.inference_mode()"
            )

    def _check_mask_applied(self) -> None:
        if not any(program.sites for program in self._programs):
            raise ValueError("a mask is set, and no attention was found in the model")


def _limits(shapes: int) -> dict[str, int]:
    """So that a new shape is compiled: Dynamo gives up after 8, and runs the model as it is."""
    config, most = torch._dynamo.config, shapes + MOST_RECOMPILES
    return {
        "recompile_limit": max(config.recompile_limit, most),
        "accumulated_recompile_limit": max(config.accumulated_recompile_limit, 8 * most),
    }


def _shapes(args: Any, kwargs: Any) -> Any:
    """What a call is compiled for: shapes and dtypes of tensors, and other values."""
    leaves, structure = tree_flatten((args, kwargs))
    return structure, tuple(map(_looks, leaves))


def _looks(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.shape, value.dtype, value.device
    return value if isinstance(value, (bool, int, float, str, type(None))) else type(value)


def optimize(
    model: nn.Module,
    mask: Mask | Tensor | None = None,
    *,
    mode: str | None = None,
    tune: float | None = None,
    **options: Any,
) -> OptimizedModel:
    """`torch.compile(model, backend="gossamer")` with a mask, and with plans to look at.

    model: in eval mode, on its device and in its dtype. mask: what every self-attention sees, one
    of `gossamer.masks` or a bool tensor; layers that are causal stay so, cross-attention is left
    alone. mode: torch.compile's, "reduce-overhead" for CUDA graphs. tune: seconds to search for a
    better plan at the first call of each shape; what is found is remembered on disk. options: see
    `gossamer.fusion.Options`.

    Each new shape is compiled. Raises TypeError or ValueError for bad options.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is {type(model).__name__}; must be a torch.nn.Module")
    if tune is not None and not tune > 0:
        raise ValueError(f"tune is {tune!r}; must be above 0 seconds")
    return OptimizedModel(model, Options.of({"mask": mask, "mode": mode, **options}), tune)
