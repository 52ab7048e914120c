"""Compositions on real nodes: right wherever ranks are, and over links only what the schedule says."""

from __future__ import annotations

import csv
import io
import re

import pytest

import mpicoll
from libraries import PROGRAMS, Library
from vcluster import Cluster


@pytest.mark.parametrize("placement", ["0,0,0,1", "0,1,2,0,1,2", "0,1,1,0,2"])
def test_everything_is_right_wherever_ranks_are(cluster: Cluster, library: Library, placement: str) -> None:
    """Unequal nodes, ranks of a node apart, and communicators in another order than the world's."""
    done = library.mpirun(cluster, placement, PROGRAMS / "over_nodes.py", placement)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "collectives right on nodes" in done.stdout
    right = dict(re.findall(r"'(\w+)': (\d+)", done.stdout.partition("compositions right:")[2]))
    for kind in ("allreduce", "bcast", "reduce", "allgather", "reduce_scatter", "alltoall"):
        compositions = sum(entry.hierarchical for entry in mpicoll.catalogue(kind))
        assert int(right[kind]) == 2 * 2 * compositions > 0  # two engines, two orders of ranks


def test_links_carry_what_the_schedule_says(cluster: Cluster, library: Library) -> None:
    placement = "0,1,2,3,0,1,2,3"
    done = library.mpirun(
        cluster, placement, PROGRAMS / "links.py", str(1 << 20), "2", "two_level", "by_node"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    text = done.stdout[done.stdout.index("algorithm,") :]
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == 2 * 4
    for row in rows:
        predicted, counted = int(row["predicted"]), int(row["counted"])
        assert predicted <= counted <= 1.1 * predicted, row
    least = 2 * 3 * (1 << 20) // 4
    assert {int(row["predicted"]) for row in rows if row["algorithm"] == "two_level"} == {least}
