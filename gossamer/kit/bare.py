"""`python -m gossamer.kit.bare OP DEVICE FILE`: one call of an op in a process of its own.

The child of `gossamer check-op`, which sets GOSSAMER_BACKENDS. Reads the arguments from FILE,
writes the results next to it and prints the backend that was chosen.
"""

import sys
from functools import partial
from pathlib import Path

import torch

from gossamer.kit.measuring import suite_of
from gossamer.ops import OPS


@torch.inference_mode()
def main(name: str, device: str, file: str) -> None:
    op, suite, path = OPS[name], suite_of(name), Path(file)
    args = torch.load(path, weights_only=True)
    case = next(iter(suite.cases(device, True)))
    results = suite.call(case.wrap(partial(op, backend=None)), *args)
    torch.save(tuple(results), path.with_suffix(".out"))
    unsuited = op.unsuited(device, args)
    chosen = op.select(device, unsuited=unsuited)
    print(next(b for b in op.available(device) if op.select(device, b) is chosen))


if __name__ == "__main__":
    main(*sys.argv[1:])
