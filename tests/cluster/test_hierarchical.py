"""Compositions on real nodes: right wherever ranks are, and over links only what the schedule says."""

from __future__ import annotations

import csv
import io

import pytest

from libraries import PROGRAMS, Library
from vcluster import Cluster


@pytest.mark.parametrize("placement", ["0,0,0,1", "0,1,2,3,0,1,2,3", "0,1,1,0,2"])
def test_every_composition_is_right_wherever_ranks_are(
    cluster: Cluster, library: Library, placement: str
) -> None:
    """Unequal nodes, cyclic placement, and communicators in another order than the world's."""
    done = library.mpirun(cluster, placement, PROGRAMS / "over_nodes.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"right on nodes ({placement.replace(',', ', ')})" in done.stdout


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
