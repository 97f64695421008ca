"""A batch job that is killed again and again: has each line one right result in the end?

    python -m benchmarks.end_to_end.batch_kill --lines 1000 --kills 3 --results benchmarks/serving

Runs `gossamer batch` on short prompts of WikiText-2 to its end, then a second time with SIGKILL at
random moments, and holds the second output to this: one result for each line, none twice, and the
same texts as in the first, half of them greedy and half sampled with a seed. Exit code 1 if not.
The record is a line of batch_kill.jsonl.
"""

import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.end_to_end.soak import TEXT
from gossamer.bench.record import describe_device, revision, versions

WORDS, OUTPUT = 8, 4  # of a prompt; tokens
PATIENCE = 600.0  # seconds without a new result


def requests(model: str, lines: int) -> list[dict[str, Any]]:
    """Lines of a batch file."""
    words = TEXT.read_text().split()
    found = []
    for i in range(lines):
        prompt = " ".join(words[i * WORDS : (i + 1) * WORDS])
        sampling = {"temperature": 0} if i % 2 else {"temperature": 1, "seed": i}
        body = {"model": model, "prompt": prompt, "max_tokens": OUTPUT, **sampling}
        line = {"custom_id": f"line {i}", "method": "POST", "url": "/v1/completions", "body": body}
        found.append(line)
    return found


def write(lines: Sequence[dict[str, Any]], path: Path) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def results(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def run(command: Sequence[str], output: Path, kill_at: Sequence[int], hasty: float) -> list[int]:
    """Until the job ends by itself; bytes of the half line that each kill left.

    kill_at: kills come when there are so many results, and up to `hasty` seconds later.
    """
    halves = []
    for wanted in kill_at:
        with subprocess.Popen(command) as process:
            _await(process, output, wanted)
            time.sleep(random.uniform(0, hasty))
            process.kill()
        content = output.read_bytes()
        halves.append(len(content) - content.rfind(b"\n") - 1)
    subprocess.run(command, check=True)
    return halves


def _await(process: "subprocess.Popen[bytes]", output: Path, wanted: int) -> None:
    end = time.monotonic() + PATIENCE
    while not output.exists() or output.read_bytes().count(b"\n") < wanted:
        if process.poll() is not None or time.monotonic() > end:
            raise RuntimeError(f"it ended, or stopped, before it had {wanted} results")
        time.sleep(0.005)


def batch_kill(
    model: Annotated[str, typer.Option(help="as for `gossamer batch`")] = "smollm2",
    lines: Annotated[int, typer.Option(help="Number of requests")] = 1000,
    kills: Annotated[int, typer.Option(help="Number of kills")] = 3,
    seed: Annotated[int, typer.Option(help="Random seed of the kills")] = 0,
    options: Annotated[str, typer.Option(help="of `gossamer batch`")] = "--kv-memory 128MB",
    folder_of_results: Annotated[
        Path | None, typer.Option("--results", help="folder for batch_kill.jsonl")
    ] = None,
) -> None:
    """Kill a batch job again and again."""
    random.seed(seed)
    start, measured_with = time.perf_counter(), {"revision": revision(), "versions": versions()}
    kill_at = sorted(random.sample(range(1, lines * 9 // 10), kills))
    with tempfile.TemporaryDirectory() as folder:
        source, whole, killed = (Path(folder, name) for name in ("in", "whole", "killed"))
        write(requests(model, lines), source)
        command = [sys.executable, "-m", "gossamer.cli.main", "batch", model, str(source)]
        subprocess.run([*command, str(whole), *options.split()], check=True)
        halves = run([*command, str(killed), *options.split()], killed, kill_at, 0.1)
        first, second = (
            {r["custom_id"]: r["response"]["body"]["choices"][0]["text"] for r in results(path)}
            for path in (whole, killed)
        )
        count = len(results(killed))
    record = {
        "what": "batch_kill",
        "model": model,
        "lines": lines,
        "killed_at": kill_at,
        "bytes_of_half_lines": halves,
        "results": count,
        "different_ids": len(second),
        "equal_texts": sum(second.get(id) == text for id, text in first.items()),
        "seed": seed,
        "seconds": round(time.perf_counter() - start),
        "device": describe_device("cpu"),
        **measured_with,
    }
    print(json.dumps(record))
    if folder_of_results is not None:
        (folder_of_results / "batch_kill.jsonl").write_text(json.dumps(record) + "\n")
    if not record["results"] == record["different_ids"] == record["equal_texts"] == lines:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(batch_kill)
