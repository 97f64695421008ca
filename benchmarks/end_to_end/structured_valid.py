"""Whether structured outputs are valid: random schemas, regexes and choices through a server.

    python -m benchmarks.end_to_end.structured_valid    # on a CPU, SmolLM2

`gossamer serve smollm2`, the `openai` client, 200 schemas made by Hypothesis at temperature 1,
streamed and whole, and regexes and choices; each answer is checked by jsonschema or re. Exit code 1
if one is not valid. Counts of each kind in structured_valid.json.
"""

import importlib.metadata
import json
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import jsonschema
import openai
import typer

from benchmarks.end_to_end.random_schemas import schemas
from benchmarks.end_to_end.soak import server
from gossamer.bench.record import device_folder, revision, versions

RESULTS = Path(__file__).parents[1] / "results"
SCHEMAS, OTHERS = 200, 20
CONCURRENCY = 16
LIMIT = 1024  # tokens of a document
PROMPT = "Write a JSON document for a record in our database."
REGEXES = (r"\d{3}-\d{4}", r"[A-Z][a-z]{2,8} (loves|hates) [a-z]{3,10}", r"(yes|no)( sir)?[.!]")
CHOICES = (["yes", "no"], ["red", "green", "light blue"], ["1", "12", "123"])
PACKAGES = ("hypothesis", "jsonschema", "llguidance", "openai")


@dataclass(frozen=True)
class Case:
    """A request that is held to something, and what its answer must pass."""

    kind: str
    body: dict[str, Any]
    check: Callable[[str], object]


def cases(count: int, others: int) -> Iterator[Case]:
    for seed, schema in enumerate(schemas(count)):
        form = {"type": "json_schema", "json_schema": {"name": "record", "schema": schema}}
        yield Case("schema", {"response_format": form, "seed": seed}, valid_for(schema))
    for seed in range(others):
        pattern, choice = REGEXES[seed % len(REGEXES)], CHOICES[seed % len(CHOICES)]
        for kind, given, check in (
            ("regex", {"regex": pattern}, re.compile(pattern, re.ASCII).fullmatch),
            ("choice", {"choice": choice}, choice.__contains__),
        ):
            body = {"extra_body": {"structured_outputs": given}, "seed": seed}
            yield Case(kind, body, check)


def valid_for(schema: dict[str, Any]) -> Callable[[str], bool]:
    checker = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())

    def check(text: str) -> bool:
        checker.validate(json.loads(text))
        return True

    return check


def answered(client: openai.OpenAI, case: Case, stream: bool) -> str | None:
    """What is wrong with the answer; None if nothing is."""
    messages = [{"role": "user", "content": PROMPT}]
    fields: dict[str, Any] = {"model": "smollm2", "messages": messages, "max_tokens": LIMIT}
    answer: Any = client.chat.completions.create(
        **fields, **case.body, temperature=1, stream=stream
    )
    choices = [chunk.choices[0] for chunk in answer] if stream else answer.choices
    said = [choice.delta if stream else choice.message for choice in choices]
    text = "".join(part.content or "" for part in said)
    reason = choices[-1].finish_reason
    try:
        good = case.check(text) and reason == "stop"
    except (ValueError, jsonschema.ValidationError) as error:
        return f"{case.kind}: {error}: {text!r}"
    return None if good else f"{case.kind}: ended by {reason}: {text!r}"


def valid(count: int, others: int, results: Path) -> bool:
    every, lines, good = list(cases(count, others)), [], True
    with (
        server("smollm2", "--kv-memory", "500MB") as (url, _, _),
        openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client,
        ThreadPoolExecutor(CONCURRENCY) as pool,
    ):
        for stream in (False, True):
            start = time.perf_counter()
            wrong = list(pool.map(lambda case, s=stream: answered(client, case, s), every))
            seconds = time.perf_counter() - start
            for kind in ("schema", "regex", "choice"):
                found = [w for c, w in zip(every, wrong, strict=True) if c.kind == kind]
                bad = [w for w in found if w is not None]
                good = good and not bad
                line: dict[str, Any] = {"kind": kind, "stream": stream, "requests": len(found)}
                lines.append({**line, "valid": len(found) - len(bad), "wrong": bad})
                typer.echo(lines[-1])
            typer.echo(f"{len(every)} requests in {seconds:.0f} s")
    folder = results / device_folder("cpu")
    folder.mkdir(parents=True, exist_ok=True)
    told = {"what": "structured_valid", "model": "smollm2", "temperature": 1}
    used = versions() | {name: importlib.metadata.version(name) for name in PACKAGES}
    told |= {"revision": revision(), "versions": used, "answers": lines}
    (folder / "structured_valid.json").write_text(json.dumps(told, indent=1) + "\n")
    return good


def main(
    count: Annotated[int, typer.Option("--schemas", help="requests with a schema")] = SCHEMAS,
    others: Annotated[int, typer.Option(help="and with a regex, and with a choice")] = OTHERS,
    results: Annotated[Path, typer.Option(help="folder for the result file")] = RESULTS,
) -> None:
    """Check structured outputs."""
    if not valid(count, others, results):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
