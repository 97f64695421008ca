"""SIGKILL at random moments: each line has one right result in the end."""

import sys

import torch

from benchmarks.end_to_end import batch_kill
from tests.batch.jobs import OPTIONS, completion, read, write
from tests.engine.serving import cpu_llm, greedy

LINES = 1000


def test_three_kills(words, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    lines = [completion(i) for i in range(LINES)]
    source, target = write(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    options = [f"--{name.replace('_', '-')}={value}" for name, value in OPTIONS.items()]
    command = [sys.executable, "-m", "gossamer.cli.main", "batch", str(words), str(source)]
    kill_at = sorted((1 + torch.randperm(LINES * 9 // 10)[:3]).tolist())
    batch_kill.run([*command, str(target), *options], target, kill_at, hasty=0.05)
    with cpu_llm(words) as llm:
        params = [greedy(line["body"]["max_tokens"]) for line in lines]
        outputs = llm.generate([line["body"]["prompt"] for line in lines], params)
    found = read(target)
    assert sorted(found) == list(range(1, LINES + 1))
    for number, output in enumerate(outputs, start=1):
        result = found[number]
        assert result["custom_id"] == f"c{number - 1}"
        assert result["response"]["body"]["choices"][0]["text"] == output.outputs[0].text
