"""Nodes, sockets and NUMA domains: what follows from who is where, and what a machine says of itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpicoll.errors import ArgumentError
from mpicoll.locality import numa_of, socket_of
from mpicoll.topology import Topology


@pytest.mark.parametrize(
    ("node_of", "placement", "leaders", "order"),
    [
        ((0, 0, 1, 1), "block", (0, 2), (0, 1, 2, 3)),
        ((0, 0, 0, 1), "block", (0, 3), (0, 1, 2, 3)),
        ((0, 1, 2), "block", (0, 1, 2), (0, 1, 2)),
        ((0, 1, 0, 1, 0), "cyclic", (0, 1), (0, 2, 4, 1, 3)),
        ((0, 1, 1, 0, 2), "irregular", (0, 1, 4), (0, 3, 1, 2, 4)),
        ((0, 1, 0, 0), "irregular", (0, 1), (0, 2, 3, 1)),
        ((0,), "block", (0,), (0,)),
    ],
)
def test_any_placement(node_of, placement, leaders, order):
    topology = Topology(node_of)
    assert topology.placement == placement
    assert topology.leaders == leaders
    assert topology.node_order == order
    assert topology.ppn == max(node_of.count(node) for node in node_of)
    for rank, node in enumerate(node_of):
        assert topology.nodes[node][topology.local_rank(rank)] == rank


def test_domains_divide_nodes():
    topology = Topology((0, 1, 0, 1), socket_of=(1, 0, 0, 0))
    assert topology.domains("node") == (0, 1, 0, 1)
    assert topology.domains("socket") == (0, 1, 2, 1)
    assert topology.domains("numa") == (0, 1, 0, 1)
    with pytest.raises(ArgumentError, match="choose one of node, socket, numa"):
        topology.domains("core")


@pytest.fixture
def system(tmp_path: Path) -> Path:
    """/sys/devices/system of a machine with two sockets, the first of which has two NUMA domains."""
    for name, cpus in (("node0", "0-1"), ("node1", "2-3"), ("node10", "4-7,12")):
        (tmp_path / "node" / name).mkdir(parents=True)
        (tmp_path / "node" / name / "cpulist").write_text(cpus + "\n")
    for cpu in range(8):
        folder = tmp_path / "cpu" / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "physical_package_id").write_text(f"{cpu // 4}\n")
    return tmp_path


@pytest.mark.parametrize(
    ("cpus", "numa", "socket"),
    [({0, 1}, 0, 0), ({3}, 1, 0), ({1, 2}, None, 0), ({3, 4}, None, None), ({4, 7}, 10, 1), ({12}, 10, None)],
)
def test_a_mask_within_a_domain_is_of_that_domain(system, cpus, numa, socket):
    assert numa_of(cpus, system) == numa
    assert socket_of(cpus, system) == socket


def test_a_machine_that_says_nothing_has_no_domains(system, tmp_path):
    (system / "node" / "node1" / "cpulist").write_text("?")
    assert numa_of({3}, system) is None
    assert numa_of(set(), system) is None
    assert numa_of({0}, tmp_path / "none") is None
    assert socket_of({0}, tmp_path / "none") is None
    (system / "cpu" / "cpu0" / "topology" / "physical_package_id").write_text(
        "-1\n"
    )  # as some virtual machines
    assert socket_of({0}, system) is None
