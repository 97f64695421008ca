"""Ranks that others have started: by torchrun and by Ray."""

import os
import re
import socket
import subprocess
import sys
import threading
import time

import pytest
import torch.distributed as dist

from gossamer.engine import LLM, link
from gossamer.engine.config import EngineConfig
from gossamer.engine.link import Address, Link, RemoteRank, accept, listen
from gossamer.engine.workers import WorkerDiedError
from tests.engine.ranks import OPTIONS, PROMISED, alone, tokens_of
from tests.models.tiny import tiny_directory

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
DEATH = r"rank 1 \(process (\d+) on .*\) ended: its connection closed"


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("llama")
    tiny_directory("llama", path)
    return path


def is_gone(pid, seconds=PROMISED):
    """Whether the process ends within this time; a zombie has ended."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            with open(f"/proc/{pid}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] == "Z":
                    return True
        except FileNotFoundError:
            return True
        time.sleep(0.05)
    return False


def kill_rank_1(llm):
    """And see that everything ends. Returns its process."""
    pid = int(re.search(r"\d+", llm.engine.executor._workers._members[1].ending())[0])
    os.kill(pid, 9)
    start = time.monotonic()
    with pytest.raises(WorkerDiedError, match=DEATH) as caught:
        tokens_of(llm)
    assert time.monotonic() - start < PROMISED
    assert int(re.search(DEATH, str(caught.value))[1]) == pid
    assert not dist.is_initialized()
    return pid


# ---- torchrun ---------------------------------------------------------------------------------


def test_torchrun(directory, tmp_path):
    """All processes run the script; what comes after the LLM runs once."""
    script = tmp_path / "script.py"
    script.write_text(f"""
import os
from gossamer.engine import LLM
from tests.engine.ranks import OPTIONS, tokens_of
print("pid", os.getpid(), flush=True)
with LLM({str(directory)!r}, tensor_parallel_size=2, **OPTIONS) as llm:
    print("tokens", tokens_of(llm), flush=True)
try:
    LLM({str(directory)!r}, tensor_parallel_size=2, **OPTIONS)
except ValueError as error:
    print("refused", error)
""")
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    done = subprocess.run(
        [*TORCHRUN, str(script)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    assert re.findall("tokens (.*)", done.stdout) == [str(alone(directory))]
    assert len(re.findall("refused .* start a new run", done.stdout)) == 1
    pids = re.findall(r"pid (\d+)", done.stdout)
    assert len(pids) == 2
    assert all(is_gone(pid) for pid in pids)


def test_killed_under_torchrun(directory, monkeypatch):
    """Rank 0 is this process: torchrun would end it before it could tell."""
    with listen("127.0.0.1") as server:
        port = server.getsockname()[1]
    ranks = {
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    for name, value in {**ranks, "RANK": "0", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    options = {"tensor_parallel_size": 2, "launcher": "torchrun", **OPTIONS}
    script = f"from gossamer.engine import LLM; LLM({str(directory)!r}, **{options})"
    environment = {**os.environ, "RANK": "1", "LOCAL_RANK": "1"}
    with subprocess.Popen([sys.executable, "-c", script], env=environment) as other:
        with LLM(directory, **options) as llm:
            assert tokens_of(llm) == alone(directory)
            assert kill_rank_1(llm) == other.pid
        assert other.wait(PROMISED) == -9


ENVIRONMENT = {
    "RANK": "0",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "1",
}


@pytest.mark.parametrize(
    ("size", "changes", "message"),
    [
        (4, {"RANK": None}, "launcher is torchrun, and the environment has no RANK"),
        (2, {}, "tensor_parallel_size is 2, and torchrun started 4 processes; must be as many"),
        (4, {}, "MASTER_ADDR is 127.0.0.1, and ranks are on several hosts"),
    ],
)
def test_what_torchrun_cannot(size, changes, message, directory, monkeypatch):
    for name, value in (ENVIRONMENT | changes).items():
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=message):
        LLM(directory, tensor_parallel_size=size, launcher="torchrun", **OPTIONS)


def test_launchers_by_name(monkeypatch):
    with pytest.raises(ValueError, match="launcher is 'mpi'; must be one of auto, spawn, torchrun"):
        EngineConfig(model="x", launcher="mpi")
    assert EngineConfig(model="x").resolved_launcher == "spawn"
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    assert EngineConfig(model="x").resolved_launcher == "torchrun"
    assert EngineConfig(model="x", launcher="spawn").resolved_launcher == "spawn"


# ---- links ------------------------------------------------------------------------------------


def test_strangers_are_not_listened_to(monkeypatch):
    """Who comes without the token, or twice, is hung up on, and the others are still served."""
    monkeypatch.setattr(link, "GREETING", 0.1)
    with listen("127.0.0.1") as server:
        address = Address("127.0.0.1", server.getsockname()[1])
        silent = socket.create_connection((address.host, address.port))
        wrong = Link.to(Address(address.host, address.port), 1)  # with a token of its own
        ranks = [Link.to(address, rank) for rank in (2, 1, 1)]
        found = accept(server, address.token, (1, 2), check=lambda: None)
    assert sorted(found) == [1, 2]
    for rank, other in ((1, ranks[1]), (2, ranks[0])):
        found[rank].pipe.send(rank)
        assert other.pipe.recv() == rank
    assert silent.recv(1) == b""
    with pytest.raises(EOFError):
        wrong.pipe.recv()
    silent.close()


def test_ranks_that_do_not_come(monkeypatch):
    monkeypatch.setattr(link, "PATIENCE", 0.2)
    with listen("127.0.0.1") as server:
        address = Address("127.0.0.1", server.getsockname()[1])
        came = Link.to(address, 2)
        with pytest.raises(TimeoutError, match="no connection from rank 1, 3 within 0 seconds"):
            accept(server, address.token, (1, 2, 3), check=lambda: None)
        with pytest.raises(EOFError):
            came.pipe.recv()
        with pytest.raises(RuntimeError, match="one is gone"):
            accept(server, address.token, (1,), check=fail)
    with pytest.raises(OSError, match=r"rank 0 cannot listen on 192\.0\.2\.200"):
        listen("192.0.2.200")


def fail():
    raise RuntimeError("one is gone")


def test_a_rank_leaves_with_rank_0(monkeypatch):
    """Also one that does not read, as it waits in a collective; unless it has hung up itself."""
    codes, left = [], threading.Event()
    monkeypatch.setattr(link.os, "_exit", lambda code: (codes.append(code), left.set()))
    with listen("127.0.0.1") as server:
        address = Address("127.0.0.1", server.getsockname()[1])
        ranks = [Link.to(address, rank) for rank in (1, 2)]
        found = accept(server, address.token, (1, 2), check=lambda: None)
    for rank in ranks:
        rank.leave_with_peer()
    ranks[1].hang_up()
    found[2].join(PROMISED)
    assert isinstance(found[1], RemoteRank)
    found[1].end(force=False)
    assert left.wait(PROMISED)
    assert codes == [1]


# ---- Ray --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ray():
    ray = pytest.importorskip("ray")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init("local", num_cpus=2, include_dashboard=False, object_store_memory=100 << 20)
    yield ray
    ray.shutdown()


def test_ray(ray, directory):
    options = {"launcher": "ray", **OPTIONS}
    with pytest.raises(ValueError, match=r"is 4, which takes 4 CPUs; the Ray cluster has 2$"):
        LLM(directory, tensor_parallel_size=4, **options)
    with LLM(directory, tensor_parallel_size=2, **options) as llm:
        assert tokens_of(llm) == alone(directory)
        assert ray.available_resources().get("CPU", 0) == 0
    llm = LLM(directory, tensor_parallel_size=2, **options)  # as there is room again
    pid = kill_rank_1(llm)
    assert is_gone(pid)
    groups = ray.util.placement_group_table().values()
    assert {group["state"] for group in groups} == {"REMOVED"}
    assert llm.engine.requests == {}


def test_without_ray(directory, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"ray is needed .* pip install 'gossamer\[ray\]'"):
        LLM(directory, tensor_parallel_size=2, launcher="ray", **OPTIONS)
