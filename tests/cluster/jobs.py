"""Batch jobs of tests: submitted to the cluster's Slurm, watched, and never waited for without an end."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from libraries import ROOT, Library
from vcluster import Cluster
from virtual_nodes import wait_for

FINISHED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")


class Job:
    """A job of one of the scripts in ``slurm/``, 2 ranks on each of 4 nodes; its log is `log`."""

    def __init__(
        self,
        cluster: Cluster,
        library: Library,
        folder: Path,
        words: Sequence[str],
        *,
        launcher: str = "",
        script: str = "sweep.sbatch",
    ):
        self.cluster, self.slurm = cluster, cluster.slurm
        self.log = folder / "log"
        env = {**self.slurm.environment(), **library.environment(), **library.settings()}
        env["SLURM_CONF"] = str(self.slurm.conf)
        env["MPICOLL_LAUNCHER"] = launcher or library.launcher
        given = ("--nodes=4", "--ntasks-per-node=2", f"--output={self.log}", f"--chdir={folder}")
        self.number = self.slurm.ask(
            "sbatch", "--parsable", *given, str(ROOT / "slurm" / script), *words, env=env
        ).strip()

    def says(self, what: str) -> str:
        """A field of what Slurm knows of it."""
        found = re.search(rf"\b{what}=(\S*)", self.slurm.ask("scontrol", "show", "job", self.number))
        return found[1] if found else ""

    def text(self) -> str:
        """What it has printed so far."""
        return self.log.read_text() if self.log.exists() else ""

    def wait(self, what: str, true: Callable[[], bool], seconds: float = 60) -> None:
        """Wait until something comes true; the job's log is shown if it does not."""
        assert wait_for(true, seconds), (
            f"not {what} in {seconds} s but {self.says('JobState')}:\n{self.text()}"
        )

    def wait_for_cases(self, cases: int) -> None:
        """Wait until it has measured so many cases."""
        self.wait(f"{cases} cases measured", lambda: len(re.findall(r"^\[\d+/", self.text(), re.M)) >= cases)

    def end(self, seconds: float = 90) -> str:
        """Wait until it has ended for good; its state."""
        self.wait("finished", lambda: self.says("JobState") in FINISHED, seconds)
        return self.says("JobState")

    def start_again(self) -> None:
        """Start the requeued job now, not two minutes later as Slurm has it.

        (Those are for what is left of its steps: the old one removes sockets that the new one has made.)
        """
        self.wait("requeued", lambda: self.says("JobState") == "PENDING")
        step = f"slurmstepd: [{self.number}."
        nodes = self.cluster.nodes
        self.wait(
            "rid of old steps", lambda: not any(step in c for n in nodes for c in n.processes().values())
        )
        self.slurm.ask("scontrol", "update", f"JobId={self.number}", "StartTime=now")
