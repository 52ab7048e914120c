"""What programs see of the nodes that they run on."""

from __future__ import annotations

import os
import re

from libraries import ROOT, Library
from vcluster import Cluster


def test_a_mesh_over_nodes_follows_the_placement(cluster: Cluster, library: Library) -> None:
    done = library.mpirun(cluster, "0,1,2,0,1,2", ROOT / "examples" / "over_nodes.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 ranks on 3 nodes, 2 each, cyclic placement" in done.stdout


def test_the_map_shows_the_nodes(cluster: Cluster, library: Library) -> None:
    done = library.mpirun(cluster, "0,1,1,0,2", "-m", "mpicoll", "info")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 ranks on 3 nodes, 1 to 2 on one, irregular placement, on 1 machine" in done.stdout
    crowded = "oversubscribed: 5 ranks share" in done.stdout
    assert crowded == (len(os.sched_getaffinity(0)) < 5), done.stdout
    rows = re.findall(r"^  node (\d) +(\S+) +ranks \(CPUs\)  (\d) \(.*?\)(?:  (\d) )?", done.stdout, re.M)
    assert rows == [("0", "node1", "0", "3"), ("1", "node2", "1", "2"), ("2", "node3", "4", "")]
