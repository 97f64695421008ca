"""Tensor parallelism on the CPU: the same tokens on any number of ranks, and no way to hang."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial

import pytest
import torch
import torch.distributed as dist

from gossamer.engine import LLM, launch_spawn
from gossamer.engine.config import EngineConfig
from gossamer.engine.parallel import WorkerDiedError
from gossamer.engine.worker import BUILT, JOINED, Start, join_group, open_store
from gossamer.engine.workers import Workers
from gossamer.integrations.calibrating import calibrate
from gossamer.models import Shard
from gossamer.server.info import EngineInfo
from tests.engine.ranks import GREEDY, OPTIONS, PROMISED, PROMPTS, alone, tokens_of
from tests.models.tiny import random_ids, tiny_directory


@pytest.fixture(autouse=True)
def nothing_left():
    threads = torch.get_num_threads()
    yield
    assert multiprocessing.active_children() == []
    assert not dist.is_initialized()
    assert torch.get_num_threads() == threads


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("llama")
    tiny_directory("llama-mha", path)
    return path


def parallel(path, size=2, **options):
    return LLM(path, tensor_parallel_size=size, **OPTIONS, **options)


def workers():
    """The processes, by rank."""
    return {int(p.name.split()[-1]): p for p in multiprocessing.active_children()}


@pytest.mark.parametrize(
    ("family", "kv", "size"),
    [
        ("llama", "dense", 2),
        ("llama", "dense", 4),
        ("llama-bias", "sparse:k=8,v=12,prefill=dense", 2),
        ("mistral", "k=dense:int8,v=sparse:8", 2),
    ],
)
def test_the_same_tokens(family, kv, size, tmp_path):
    """Of models with two KV heads, which four ranks share; again with cached prefixes."""
    torch.manual_seed(0)  # the order of sums differs, so another seed may have a tie
    tiny_directory(family, tmp_path)
    # Chunks of prompts beside decoding, except where prompts have to come whole.
    options = {"kv": kv, "max_num_batched_tokens": 128 if "prefill" in kv else 50}
    expected = alone(tmp_path, **options)
    with parallel(tmp_path, size, **options) as llm:
        assert tokens_of(llm) == expected
        assert tokens_of(llm) == expected
        replicas, shape = max(1, size // 2), llm.engine.built.source.config.kv_shape
        whole = replicas * llm.engine.kv.block_bytes(shape)
        assert EngineInfo.of(llm).stored_bytes == whole
    llm.close()
    with pytest.raises(RuntimeError, match="closed"):
        llm.generate([[3]], GREEDY)


def test_a_coded_cache(tmp_path):
    """Every rank has the bases of its own heads."""
    torch.manual_seed(1)
    model = tiny_directory("llama", tmp_path)
    file = tmp_path / "calibration.safetensors"
    calibrate(model, random_ids(400), context=100).save(file)
    options = {"kv": "coded:50%,window=0", "calibration": file}
    expected = alone(tmp_path, **options)
    with parallel(tmp_path, 4, **options) as llm:
        assert tokens_of(llm) == expected


def test_one_after_another(directory, request):
    request.addfinalizer(partial(torch.set_num_threads, torch.get_num_threads()))
    torch.set_num_threads(5)
    llm = parallel(directory)
    assert list(workers()) == [1]
    assert torch.get_num_threads() == 2  # ranks share them
    with pytest.raises(RuntimeError, match="close the other LLM"):
        parallel(directory)
    del llm  # as good as closing it
    assert workers() == {}
    assert torch.get_num_threads() == 5


# ---- a rank that dies -------------------------------------------------------------------------


def test_killed_between_steps(directory):
    llm = parallel(directory)
    llm.add_request([3, 4, 5], GREEDY)
    assert llm.step()
    workers()[1].kill()
    start = time.monotonic()
    with pytest.raises(WorkerDiedError, match="rank 1 ended with exit code -9"):
        llm.step()
    assert time.monotonic() - start < PROMISED
    assert workers() == {}
    assert not llm.engine.requests
    with pytest.raises(WorkerDiedError, match="rank 1"):
        llm.generate([[3]], GREEDY)
    llm.close()


def test_killed_in_a_collective(directory):
    """Of four ranks, of which the others fail as well, and later."""
    llm = parallel(directory, size=4)
    victim = workers()[2]
    os.kill(victim.pid, signal.SIGSTOP)  # so that the others certainly wait for it
    killed = []

    def kill():
        killed.append(time.monotonic())
        os.kill(victim.pid, signal.SIGKILL)

    threading.Timer(1.0, kill).start()
    with pytest.raises(WorkerDiedError, match="rank 2 ended with exit code -9"):
        llm.generate(PROMPTS, GREEDY)
    assert killed
    assert time.monotonic() - killed[0] < PROMISED
    assert workers() == {}


def test_an_exception_in_a_worker(directory):
    llm = parallel(directory)
    llm.engine.executor._workers._members[1].pipe.send("not a step")
    with pytest.raises(WorkerDiedError, match="rank 1 failed: AttributeError: 'str'") as caught:
        llm.generate([[3]], GREEDY)
    assert "in _serve" in caught.value.__notes__[0]
    assert workers() == {}


def test_an_exception_in_rank_0(directory, monkeypatch):
    """Ctrl-C in the middle of a step: the other ranks wait for this one, and cannot go on."""
    llm = parallel(directory)

    def interrupted(step):
        raise KeyboardInterrupt

    monkeypatch.setattr(llm.engine.executor.built.runner, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate([[3]], GREEDY)
    assert workers() == {}
    with pytest.raises(WorkerDiedError, match="rank 0 failed: KeyboardInterrupt"):
        llm.generate([[3]], GREEDY)


ENDS = {
    "killed in a step": "threading.Timer(0.2, os.kill, (os.getpid(), 9)).start(); generate(9999)",
    "exception": "1 / 0",
}


@pytest.mark.parametrize("end", ENDS)
def test_workers_end_with_their_parent(end, directory):
    script = f"""
import os, sys, threading
from gossamer.engine import LLM, SamplingParams
llm = LLM({str(directory)!r}, tensor_parallel_size=2, **{OPTIONS})
def generate(times):
    for _ in range(times):
        llm.generate([[3, 4]], SamplingParams(max_tokens=300, ignore_eos=True))
generate(1)
print("generated", flush=True)
{ENDS[end]}
"""
    # Ends when everyone who has the output open has ended: the workers have it too.
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=90, check=False
    )
    assert done.stdout == "generated\n"
    assert done.returncode == (1 if end == "exception" else -9)


# ---- what is refused --------------------------------------------------------------------------


def test_sizes_that_do_not_divide(directory):
    with pytest.raises(ValueError, match=r"tensor_parallel_size is 3, and .* one of 1, 2, 4$"):
        parallel(directory, size=3)


def test_no_such_model(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        parallel(tmp_path / "nowhere")


def test_options_that_all_ranks_refuse(directory):
    with pytest.raises(ValueError, match="max_model_len is 513; must be 2 to 512"):
        parallel(directory, max_model_len=513)


def test_a_worker_that_refuses(tmp_path):
    """What only a worker finds wrong is raised here, as the same type."""
    options = EngineConfig(model=tmp_path / "not-here", tensor_parallel_size=2, **OPTIONS)
    launch = launch_spawn.launch(options)
    store = open_store(launch.host)
    others = Workers(launch.members, lambda: None)
    others.start({1: Start(options, Shard(1, 2), "gloo", (launch.host, store.port), 1)})
    others.wait_for(JOINED)
    join_group(store, Shard(0, 2), "gloo")
    with pytest.raises(FileNotFoundError, match="not-here: there is no such model"):
        others.wait_for(BUILT)
    others.close()
    dist.destroy_process_group()


def test_a_group_that_is_there_already(directory):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(RuntimeError, match="destroy the group first"):
            parallel(directory)
    finally:
        dist.destroy_process_group()
