"""A plan in words: segments, what computes them, how long that should take and how long it did."""

from typing import TYPE_CHECKING

from gossamer.fusion.cost import segment_us, speed_of
from gossamer.fusion.patterns import tensor_of
from gossamer.fusion.plan import UNFUSED

if TYPE_CHECKING:
    from gossamer.fusion.program import Program, Step


def explain(program: "Program") -> str:
    """A line for each segment; equal ones that follow each other in layers are counted."""
    lines = [f"plan {program.plan.key}: {len(program.steps)} segments"]
    rows: dict[tuple[str, ...], int] = {}
    for step in program.steps:
        row = _row(program, step)
        rows[row] = rows.get(row, 0) + 1
    header = ("operators", "result", "kernel", "predicted", "measured", "why")
    table = [("times", *header), *((f"{n} x", *row) for row, n in rows.items())]
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]) - 1)]
    for row in table:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        lines.append("  ".join([*cells, row[-1]]).rstrip())
    if program.weights.nbytes:
        lines.append(f"weights laid side by side or transposed: {program.weights.nbytes:,} bytes")
    return "\n".join(lines)


def _row(program: "Program", step: "Step") -> tuple[str, ...]:
    operators = step.segment.operators
    last = tensor_of(operators[-1].out)
    assert last is not None, "operators have tensors"
    speed = speed_of(program.device, last.dtype)
    predicted = segment_us(operators, step.kernel != UNFUSED, speed)
    measured = program.plan.measured.get(step.segment.places.start)
    why = step.segment.reason or ""
    site = program.sites.get(step.segment.places.start)
    if site is not None:
        why = site.description
        predicted *= site.density
    return (
        step.kinds,
        "x".join(map(str, last.shape)),
        step.kernel,
        f"{predicted:.1f} us",
        "-" if measured is None else f"{measured:.1f} us",
        why,
    )
