"""Batch files, and the jobs of these tests."""

import json

from gossamer.batch import Setup
from gossamer.batch.job import Job
from gossamer.batch.lines import survey
from gossamer.batch.results import Results

OPTIONS = {"device": "cpu", "dtype": "float32", "kv_memory": "64MB"}
LIMIT = 1 << 20


def completion(number, **body):
    """A greedy request for the model `words`."""
    body = {"prompt": f"w{number % 80} w{number % 7}", "max_tokens": 1 + number % 5} | body
    body = {"model": "words", "temperature": 0, **body}
    return {"custom_id": f"c{number}", "method": "POST", "url": "/v1/completions", "body": body}


def setup(model, **changes):
    fields = {"kv": "dense", "options": OPTIONS, "name": "words", "max_body": LIMIT}
    return Setup(**{"model": str(model), **fields, "in_flight": 16, **changes})


def write(path, lines):
    """Objects as JSON, text as it is."""
    texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    path.write_text("".join(text + "\n" for text in texts))
    return path


def read(path):
    """Results by the number of their line; each must be there once."""
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    found = {int(line["id"].rsplit("_", 1)[1]): line for line in lines}
    assert len(found) == len(lines)
    return found


def opened(path, source, setup_digest="0" * 64):
    """The output of a job, and its input's survey."""
    found = survey(source, LIMIT)
    return Results(path, Job(found.digest, setup_digest), len(found.repeats) - 1), found
