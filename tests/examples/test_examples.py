"""Every program in examples/ runs as its docstring says, and prints what it promises."""

import os
import re
import subprocess
import sys

import pytest

from tests.docs.snippets import ROOT
from tests.engine.serving import need_smollm2

EXAMPLES = ROOT / "examples"
# Arguments that keep it short, and what it must print.
RUNS: dict[str, tuple[tuple[str, ...], str]] = {
    "kvpress_comparison": (
        ("benchmarks/data/wikitext2-test-excerpt.txt", "--tokens", "100", "--new", "2"),
        r"DynamicCache: 100% of the bytes, 2 of 2 tokens",
    ),
    "llm": ((), r"22\.7% of the bytes(.|\n)*built in 1857"),
    "masked_attention": ((), r"longformer: \d+\.\d% visible, \d+ full(.|\n)*\|█"),
    "new_operator": ((), r"backends on this CPU: reference\nbad argument: capped_square: limit is"),
    "openai_client": ((), r"smollm2: \w+(.|\n)*'kv': 'sparse:k=32,v=32'(.|\n)*\|The\|"),
    "policy": ((), r"magnitude: [0-9.]+ nats(.|\n)*last_half: [0-9.]+ nats"),
    "streaming": ((), r"request-1 finished:(.|\n)*first token after \d"),
    "transformers_pipeline": (("The sea is", "--new", "4"), r"DynamicCache: (.|\n)*sparse:k=32"),
}
NEEDS = {
    "kvpress_comparison": "transformers",
    "openai_client": "openai",
    "transformers_pipeline": "transformers",
}


def test_all_of_them_are_here():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(RUNS)


@pytest.mark.parametrize("name", RUNS)
def test_example(name):
    if name not in ("masked_attention", "new_operator", "policy"):
        need_smollm2()
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    arguments, printed = RUNS[name]
    result = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments],
        cwd=ROOT,
        env=os.environ | {"OMP_WAIT_POLICY": "passive"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.search(printed, result.stdout), result.stdout
    assert f"python examples/{name}.py" in (EXAMPLES / f"{name}.py").read_text()
