"""Batch jobs of tests: submitted to the cluster's Slurm, watched, and never waited for without an end."""

from __future__ import annotations

import contextlib
import csv
import os
import re
import shutil
import signal
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from libraries import ROOT, Library, started_too_soon
from vcluster import Cluster
from virtual_nodes import ClusterError, wait_for

FINISHED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
PATIENCE = 120  # seconds; nothing takes a tenth of it on an idle machine
_RANK = re.compile(r"\S*python\S* \S*/mpicoll sweep ")


class Job:
    """``slurm/sweep.sbatch`` on some of the nodes; its log is `log`, its result `results`."""

    def __init__(
        self,
        cluster: Cluster,
        library: Library,
        folder: Path,
        words: Sequence[str],
        *,
        nodes: Sequence[int],
        ppn: int = 1,
        launcher: str = "",
        options: Sequence[str] = (),
    ):
        self.slurm = cluster.slurm
        self.nodes = [cluster.node(f"node{number}") for number in nodes]
        self.log, self.results = folder / "log", folder / "results"
        env = {**self.slurm.environment(), **library.environment(), **library.settings()}
        env["MPICOLL_LAUNCHER"] = launcher or library.launcher
        names = ",".join(node.name for node in self.nodes)
        where = (f"--nodes={len(nodes)}", f"--nodelist={names}", f"--ntasks-per-node={ppn}")
        files = (f"--output={self.log}", f"--chdir={folder}")
        argv = ("sbatch", "--parsable", *where, *files, *options, str(ROOT / "slurm" / "sweep.sbatch"))
        self._submit = partial(self.slurm.ask, *argv, *words, "-o", "results", env=env)
        self.number = self._submit().strip()

    def says(self, what: str) -> str:
        """A field of what Slurm knows of it."""
        found = re.search(rf"\b{what}=(\S*)", self.slurm.ask("scontrol", "show", "job", self.number))
        return found[1] if found else ""

    def text(self) -> str:
        """What it has printed so far."""
        return self.log.read_text() if self.log.exists() else ""

    def measured(self) -> int:
        """How many cases it says it has measured."""
        return len(re.findall(r"^\[\d+/", self.text(), re.M))

    def rows(self) -> list[dict[str, str]]:
        """Its samples."""
        with (self.results / "samples.csv").open() as file:
            return list(csv.DictReader(file))

    def cases(self) -> list[tuple[str, str]]:
        """The launch and the name of each case in its samples."""
        return sorted({(row["launch"], row["case"]) for row in self.rows()})

    def ranks(self) -> list[int]:
        """The processes that measure."""
        return [pid for node in self.nodes for pid, line in node.processes().items() if _RANK.match(line)]

    def wait(self, what: str, true: Callable[[], bool]) -> None:
        """Wait until something comes true; the job's log is shown if it does not."""
        assert wait_for(true, PATIENCE, every=0.1), f"not {what} but {self.says('JobState')}:\n{self.text()}"

    def freeze(self) -> bool:
        """Stop its ranks in the middle of a case, if the first is done: time passes, and nothing happens.

        Returns whether it was.
        """
        if not self.measured():
            return False
        for pid in self.ranks():
            os.kill(pid, signal.SIGSTOP)
        return True

    def is_warned(self) -> bool:
        """Whether SIGUSR1 has reached a rank that is frozen, and waits there."""
        for pid in self.ranks():
            pending = re.search(r"^ShdPnd:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(), re.M)
            if pending and int(pending[1], 16) >> (signal.SIGUSR1 - 1) & 1:
                return True
        return False

    def thaw(self) -> None:
        """Let its ranks go on."""
        for pid in self.ranks():
            os.kill(pid, signal.SIGCONT)

    def end(self) -> str:
        """Wait until it has ended for good; its state."""
        self.wait("finished", lambda: self.says("JobState") in FINISHED)
        if started_too_soon(self.text()):
            shutil.rmtree(self.results, ignore_errors=True)
            self.log.unlink()
            self.number = self._submit().strip()
            self.wait("finished", lambda: self.says("JobState") in FINISHED)
        return self.says("JobState")

    def start_again(self) -> None:
        """Start the requeued job soon, not two minutes later as Slurm has it.

        (Those are for what is left of its steps: the old one removes sockets that the new one has made. And
        the credentials of a second start within the second of the requeueing are refused.)
        """
        self.wait("requeued", lambda: self.says("JobState") == "PENDING")
        step = f"slurmstepd: [{self.number}."
        self.wait(
            "rid of old steps", lambda: not any(step in c for n in self.nodes for c in n.processes().values())
        )
        self.slurm.ask("scontrol", "update", f"JobId={self.number}", "StartTime=now+3", "TimeLimit=30")

    def kill(self) -> None:
        """Leave nothing of it, if it has not ended."""
        for words in (("--full", "--signal=KILL"), ()):
            with contextlib.suppress(ClusterError):  # it has
                self.slurm.ask("scancel", "--quiet", *words, self.number)
