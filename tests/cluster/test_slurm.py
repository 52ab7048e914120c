"""The scripts in ``slurm/`` under a real Slurm, and what may happen to a job.

Jobs have nodes of their own. Those that Slurm takes half a minute to end are begun before the first test, and
looked at in the last ones.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import virtual_slurm
from jobs import PATIENCE, Job
from libraries import Library, installed
from vcluster import Cluster

ALGORITHMS = ("--algorithms", "two_level,builtin")
SHORT = ["--sizes", "4,64K", *ALGORITHMS, "--iterations", "5"]
LONG = ["--sizes", "4:4K:4", *ALGORITHMS, "--iterations", "100000", "--case-time", "500ms"]
CASES = 6  # of LONG, half a second each

pytestmark = pytest.mark.timeout(5 * PATIENCE)
Submit = Callable[..., Job]


@pytest.fixture(scope="module", autouse=True)
def _slurm(cluster: Cluster) -> None:
    if reason := virtual_slurm.missing():
        pytest.skip(reason)


@pytest.fixture
def submit(cluster: Cluster, library: Library, tmp_path: Path) -> Iterator[Submit]:
    """Submits a job of the library at hand; none is left behind."""
    if library.name == "openmpi" and not virtual_slurm.has_pmix():
        pytest.skip("Slurm has no PMIx here, which Open MPI needs: apt-get install libpmix2, see .ci/run")
    jobs: list[Job] = []

    def submit(words: list[str], **more: Any) -> Job:
        jobs.append(Job(cluster, library, tmp_path, words, **more))
        return jobs[-1]

    yield submit
    for job in jobs:
        job.kill()


@pytest.fixture(scope="module", autouse=True)
def struck(_slurm: None, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Two jobs of Open MPI, by srun and by mpirun, in the middle of a case: a node of one has died, and the
    other is near its time limit."""
    library = installed("openmpi")
    if library is None or not virtual_slurm.has_pmix():
        yield None
        return
    dies = Job(cluster, library, tmp_path_factory.mktemp("dies"), LONG, nodes=(5, 6))
    late = Job(cluster, library, tmp_path_factory.mktemp("late"), LONG, nodes=(7, 8), launcher="mpirun")
    try:
        late.wait("both measure", lambda: all([job.freeze() for job in (dies, late)]))
        cluster.node("node6").end()
        # Slurm looks twice a minute for jobs that end within those two that the script wants to be told
        # ahead. (From the start with --time=2 it might look before the first case is done.)
        cluster.slurm.ask("scontrol", "update", f"JobId={late.number}", "TimeLimit=2")
        yield SimpleNamespace(dies=dies, late=late)
    finally:
        for job in (dies, late):
            job.kill()


def test_a_sweep_is_measured_and_reported(submit: Submit, library: Library) -> None:
    job = submit(SHORT, nodes=(1, 2, 3, 4), ppn=2)
    assert job.end() == "COMPLETED", job.text()
    found = job.rows()
    assert {row["status"] for row in found} == {"ok"}
    assert {row["checked"] for row in found} == {"1"}
    assert {row["algorithm"] for row in found if row["implementation"] == "mpicoll"} == {"two_level"}
    assert {(row["ranks"], row["nodes"], row["ppn"], row["placement"]) for row in found} == {
        ("8", "4", "2", "block")
    }
    if library.name == "mpich":  # one report will do: it reads the same columns
        done = library.mpicoll("report", job.results, "--no-figures", timeout=PATIENCE)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "8 ranks on 4 nodes" in (job.results / "report.html").read_text()


def test_many_worlds_of_one_rank_are_refused(submit: Submit) -> None:
    """Without the right --mpi, srun starts 2 programs that each believe to be alone, and exits with 0."""
    job = submit(SHORT, nodes=(1, 2), launcher="srun --mpi=none --kill-on-bad-exit=1")
    assert job.end() == "FAILED", job.text()
    assert re.search(r"started 2 ranks, but MPI sees a world of 1", job.text()), job.text()
    assert "--mpi=" in job.text()
    assert not job.results.exists()


@pytest.mark.parametrize("library", ["openmpi"], indirect=True)  # Slurm does the same for both
def test_a_cancelled_job_leaves_a_whole_record(submit: Submit) -> None:
    job = submit(LONG, nodes=(1, 2))
    job.wait("measuring", job.freeze)
    job.slurm.ask("scancel", job.number)  # which wakes the ranks
    assert job.end() == "CANCELLED"
    job.wait("at its end", lambda: not job.ranks())
    assert job.measured() <= len(job.cases()) < CASES
    assert {row["status"] for row in job.rows()} == {"ok"}
    launch = json.loads((job.results / "run.json").read_text())["launches"][-1]
    assert "stopped by SIGTERM" in launch["status"]


@pytest.mark.parametrize("library", ["openmpi"], indirect=True)
def test_a_node_that_dies_costs_one_case(submit: Submit, struck: Any, cluster: Cluster) -> None:
    """Slurm notices, and puts the job back into the queue; with the node back, the job goes on."""
    job = struck.dies
    job.start_again()
    before = job.measured()
    assert 1 <= before < CASES
    cluster.revive("node6")
    assert job.end() == "COMPLETED", job.text()
    assert job.says("Restarts") == "1"
    found = job.cases()
    assert len(found) == len({case for _, case in found}) == CASES
    assert [launch for launch, _ in found].count("0") >= before
    assert {row["status"] for row in job.rows()} == {"ok"}


@pytest.mark.parametrize("library", ["openmpi"], indirect=True)
def test_a_job_that_is_out_of_time_goes_on_from_there(submit: Submit, struck: Any) -> None:
    job = struck.late
    job.wait("warned", job.is_warned)
    job.thaw()
    job.start_again()
    assert "stopped by SIGUSR1" in job.text()
    assert job.end() == "COMPLETED", job.text()
    assert job.says("Restarts") == "1"
    # Every case once: those before the warning in the first launch, the others in the second.
    found = job.cases()
    assert len(found) == len({case for _, case in found}) == CASES
    assert {launch for launch, _ in found} == {"0", "1"}
