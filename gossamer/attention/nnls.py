"""Least squares with coefficients that are not negative."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def nnls(matrix: Floats, target: Floats) -> Floats:
    """x >= 0 with the least |matrix x - target|: the method of Lawson and Hanson."""
    columns = matrix.shape[1]
    scale = np.linalg.norm(matrix, axis=0)
    used = scale > 0  # others may be anything: 0
    scaled = matrix / np.where(used, scale, 1)
    x, active = np.zeros(columns), np.zeros(columns, dtype=bool)
    for _ in range(10 * columns):
        gradient = scaled.T @ (target - scaled @ x)
        gradient[active | ~used] = -np.inf
        if gradient.max() <= 1e-10 * np.linalg.norm(target):
            break
        active[gradient.argmax()] = True
        x = _inside(scaled, target, x, active)
    return x / np.where(used, scale, 1)


def _inside(matrix: Floats, target: Floats, x: Floats, active: NDArray[np.bool_]) -> Floats:
    """The least squares of the active columns; those that would be negative become inactive."""
    while True:
        wanted = np.zeros_like(x)
        wanted[active] = np.linalg.lstsq(matrix[:, active], target, rcond=None)[0]
        negative = active & (wanted <= 0)
        if not negative.any():
            return wanted
        steps = x[negative] / (x[negative] - wanted[negative])
        x = x + steps.min() * (wanted - x)
        active &= x > 1e-12
        x[~active] = 0
        if not active.any():
            return x


def fit_relative(matrix: Floats, target: Floats) -> Floats:
    """x >= 0 with the least squares of relative errors, (matrix x - target) / target."""
    return nnls(matrix / target[:, None], np.ones(len(target)))
