"""What coded caches cost at short and long positions: RoPE turns keys by them.

Twice KL(dense || cache) of SmolLM2 on 1,024 tokens of validation text that no calibration was made
of, placed at several starts: what `--kv auto` expects of a cache there. One JSON line per start and
cache.
"""

import json
from pathlib import Path
from typing import Annotated

import typer

from gossamer.evaluation.texts import read_text
from gossamer.integrations.expected_loss import expected_losses
from gossamer.integrations.transformers import load_model
from gossamer.kv import Calibration
from gossamer.models import open_model
from gossamer.models.embedded import embedded_path

MODEL = "smollm2"
TEXT = Path(__file__).parents[1] / "data/wikitext2-choose-excerpt.txt"
TOKENS = 1024
STARTS = (0, 1024, 3072, 5120, 7168)
SPECS = ("coded:23.5%", "coded:20.5%", "coded:14.5%")
SCORES = Path("benchmarks/quality/scores/positions-smollm2.jsonl")


def main(
    calibration: Annotated[Path | None, typer.Option(help="instead of the shipped one")] = None,
    output: Annotated[Path, typer.Option("-o", help="a line per start and cache")] = SCORES,
) -> None:
    """Measure; minutes on two cores."""
    file = calibration or open_model(MODEL).calibration
    assert file is not None, "SmolLM2's calibration is shipped"
    model, tokenizer = load_model(embedded_path(MODEL))
    ids = tokenizer(read_text(TEXT)[0])["input_ids"][:TOKENS]
    found = Calibration.load(file)
    lines = []
    for start in STARTS:
        losses = expected_losses(model, [ids], found, specs=SPECS, start=start)
        for spec, loss in losses.items():
            line = {"start": start, "kv": spec, "expected": loss.mean, "half": loss.half}
            lines.append(line | {"tokens": len(ids), "text": TEXT.name})
            typer.echo(f"{start:5d} {spec} {loss}")
    output.write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    typer.run(main)
