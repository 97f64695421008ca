"""Fusion: `torch.compile(model, backend="gossamer")`, plans, and the tuner that finds them."""

from importlib.metadata import entry_points

from torch._dynamo import register_backend

from gossamer.fusion.backend import Options, gossamer
from gossamer.fusion.optimize import OptimizedModel, optimize
from gossamer.fusion.plan import Plan
from gossamer.fusion.program import Program

__all__ = ["OptimizedModel", "Options", "Plan", "Program", "gossamer", "optimize"]

# An installed package names the backend itself; from a folder of sources, this import does.
if "gossamer" not in entry_points(group="torch_dynamo_backends").names:
    register_backend(gossamer, name="gossamer")
