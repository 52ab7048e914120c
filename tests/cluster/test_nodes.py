"""The virtual nodes themselves: where ranks run, and that nothing is left of them."""

from __future__ import annotations

import pytest

from libraries import PROGRAMS, Library
from vcluster import Cluster


@pytest.mark.parametrize("placement", ["0,0,1,1,2,2,3,3", "0,1,2,3,0,1,2,3", "0,0,0,1", "0,1,1,0,2"])
def test_ranks_run_where_they_are_placed(cluster: Cluster, library: Library, placement: str) -> None:
    done = library.mpirun(cluster, placement, PROGRAMS / "hello.py", placement)
    assert done.returncode == 0, done.stdout + done.stderr
