"""Capacity planning: how many GPUs a rate of requests needs, from measured kernels."""

from gossamer.planning.fleet import Demand, Fleet, Impossible, fleets
from gossamer.planning.gpu import GPU, load_gpu, load_gpu_file
from gossamer.planning.memory import Limits
from gossamer.planning.simulation import Arrival, simulate
from gossamer.planning.step import StepModel
from gossamer.planning.traffic import Traffic

__all__ = [
    "GPU",
    "Arrival",
    "Demand",
    "Fleet",
    "Impossible",
    "Limits",
    "StepModel",
    "Traffic",
    "fleets",
    "load_gpu",
    "load_gpu_file",
    "simulate",
]
