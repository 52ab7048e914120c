"""A cluster leaves nothing behind: no process, interface, mount or file, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import virtual_nodes
from vcluster import SELF, Cluster
from virtual_nodes import ClusterError, started, wait_for

COMMAND = [sys.executable, str(SELF)]


def vcluster(name: str, *words: str) -> str:
    argv = [*COMMAND, "--name", name, *words]
    return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=60).stdout


@pytest.fixture
def name() -> Iterator[str]:
    if reason := virtual_nodes.missing():
        pytest.skip(reason)
    name = f"teardown-{os.getpid()}"
    yield name
    try:
        Cluster.find(name).down()
    except ClusterError:
        return  # as it should be
    pytest.fail("the cluster was still up")


class Traces:
    """What the machine has of a running cluster."""

    def __init__(self, name: str):
        cluster = Cluster.find(name)
        self.directory = cluster.directory
        self.interface = Path("/sys/class/net", cluster.interface)
        self.processes = {
            pid: started(pid)
            for node in [cluster.login, *cluster.nodes]
            for pid in [*node.processes(), virtual_nodes.living(node.file)]
        }
        assert self.interface.exists()

    def left(self) -> list[str]:
        """Those that are still there."""
        found = [f"process {pid}" for pid, when in self.processes.items() if started(pid) == when]
        found += [str(path) for path in (self.directory, self.interface) if path.exists()]
        found += [
            line for line in Path("/proc/mounts").read_text().splitlines() if str(self.directory) in line
        ]
        return found


def test_nothing_is_left_after_down(name: str) -> None:
    vcluster(name, "up", "2", "--rate", "none", "--private-tmp")
    with subprocess.Popen([*COMMAND, "--name", name, "exec", "node1", "sleep", "1000"]):
        cluster = Cluster.find(name)
        assert wait_for(lambda: "sleep 1000" in cluster.node("node1").processes().values(), 20)
        traces = Traces(name)
        assert len(traces.processes) == 4  # three PID 1 and the sleeper
        vcluster(name, "down")
    assert not traces.left()


def test_a_cluster_ends_with_its_owner_even_if_that_is_killed(name: str) -> None:
    with subprocess.Popen(["sleep", "1000"]) as owner:
        vcluster(name, "up", "2", "--owner", str(owner.pid))
        traces = Traces(name)
        assert traces.left()
        owner.send_signal(signal.SIGKILL)
        assert wait_for(lambda: not traces.left(), 20), traces.left()


def test_a_name_is_given_once(name: str) -> None:
    vcluster(name, "up", "1")
    done = subprocess.run([*COMMAND, "--name", name, "up", "1"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "is up already" in done.stderr
    vcluster(name, "down")
    done = subprocess.run([*COMMAND, "--name", name, "status"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "no cluster called" in done.stderr
