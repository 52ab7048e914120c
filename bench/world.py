"""The running MPI job: how it begins, how its ranks agree, how it is stopped, and how it dies.

Importing this module does not start MPI; `start` does, with the thread level asked for.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from mpicoll.bench import machine
from mpicoll.errors import MpicollError
from mpicoll.locality import parse_cpus

if TYPE_CHECKING:
    from mpicoll.topology import Topology

# What each launcher tells its processes: (rank, number of ranks).
_LAUNCHERS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("PALS_RANKID", "PALS_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)

_HEAD_START = 2.0  # seconds; the first rank's bad status ends the others long before


class Refused(MpicollError):
    """All ranks agree that the job ends here, with this exit status: the only quiet end of one."""

    def __init__(self, message: str, status: int = 2):
        super().__init__(message)
        self.status = status


class Stopped(Refused):
    """A signal asked the job to stop; the exit status says which."""

    def __init__(self, number: int):
        super().__init__(f"stopped by {signal.Signals(number).name}", 128 + number)


def launched() -> tuple[int, int] | None:
    """Rank and size according to the launcher's variables, or None without a launcher."""
    for rank, size in _LAUNCHERS:
        with contextlib.suppress(KeyError, ValueError):
            return int(os.environ[rank]), int(os.environ[size])
    return None


def is_first() -> bool:
    """Whether this process should speak before MPI has begun."""
    return (launched() or (0, 1))[0] == 0


def let_the_first_speak() -> None:
    """Called by every rank that is about to end the job with a bad status: the first goes first.

    An mpirun ends the job at the first bad status, and with it what another rank had still to print
    (Open MPI does; seen under load). Before MPI has begun there is nothing to wait with but time;
    where it runs, `MPI_Finalize` keeps the ranks together, unless each is alone in a world of its own.
    """
    mpi = sys.modules.get("mpi4py.MPI")
    if not is_first() and (mpi is None or mpi.Is_finalized() or mpi.COMM_WORLD.size == 1):
        time.sleep(_HEAD_START)


def launcher_problem(size: int) -> str | None:
    """Why a world of `size` ranks is not the one that was asked for, or None.

    An mpirun of another MPI starts N worlds of one rank each; so do srun with the wrong ``--mpi`` and
    forgetting the launcher inside a job, all with exit status 0.
    """
    told = launched() or (0, int(os.environ.get("SLURM_NTASKS", "1") or 1))
    if size > 1 or told[1] <= 1:
        return None
    text = (
        f"the launcher started {told[1]} ranks, but MPI sees a world of 1: "
        "use the mpirun or srun that belongs to the MPI which mpi4py uses (`mpicoll info` names it)"
    )
    if "SLURM_JOB_ID" in os.environ:
        text += "; with srun, MPICH mostly needs --mpi=pmi2 and Open MPI --mpi=pmix (`srun --mpi=list`)"
    return text


@dataclass(slots=True)
class World:
    """The ranks of this job; `control` is a communicator for the harness's own messages."""

    control: Any
    rank: int
    size: int
    thread_level: str
    hosts: list[str]  # of each rank
    cpus: list[str]  # the CPUs each rank may use, as ranges
    topology: Topology  # where each rank runs
    quota: list[float | None]  # CPU limit on each rank's node
    machine: dict[str, Any]  # of rank 0
    software: dict[str, Any]
    library: str
    vendor: str
    busy: float | None = None  # CPUs of a node that other programs keep busy, where there are most

    @property
    def first(self) -> bool:
        """Whether this rank speaks and writes."""
        return self.rank == 0

    @property
    def nodes(self) -> tuple[int, ...]:
        """Node number of each rank."""
        return self.topology.node_of

    @property
    def node_count(self) -> int:
        """Number of nodes."""
        return len(self.topology.nodes)

    @property
    def ppn(self) -> int:
        """The most ranks on one node."""
        return self.topology.ppn

    def cpus_together(self, ranks: Sequence[int]) -> int:
        """How many CPUs ranks of one machine may use together, at most the quotas of their nodes."""
        together = len(set().union(*(parse_cpus(self.cpus[rank]) for rank in ranks)))
        quotas = {self.nodes[rank]: self.quota[rank] for rank in ranks}.values()
        return min(together, sum(together if one is None else max(1, -int(-one // 1)) for one in quotas))

    @property
    def oversubscribed(self) -> bool:
        """Whether some machine runs more ranks than it has CPUs for; several nodes may be one machine."""
        return any(len(ranks) > self.cpus_together(ranks) for ranks in self.topology.machines)

    def agree(self, problem: str | None, patience: float = 60.0) -> str | None:
        """The problem of the first rank that has one, on all ranks.

        A rank with a problem that meets no others within `patience` seconds ends the job: they wait for
        it in a collective that it will not join.
        """
        from mpi4py import MPI

        meeting = self.control.Ibarrier()
        deadline = time.monotonic() + patience
        while not meeting.Test():
            if problem is not None and time.monotonic() > deadline:
                abort(MpicollError(f"{problem} (and the other ranks did not come to hear of it)"))
            time.sleep(0)
        mine = self.size if problem is None else self.rank
        first = self.control.allreduce(mine, op=MPI.MIN)
        return None if first == self.size else self.control.bcast(problem, root=first)

    def largest(self, value: float) -> float:
        """The largest value of any rank."""
        from mpi4py import MPI

        return self.control.allreduce(value, op=MPI.MAX)

    @contextlib.contextmanager
    def together(self, status: int = 2) -> Iterator[None]:
        """Within, a `MpicollError` of any rank ends the job on all of them. Collective at its end."""
        problem = None
        try:
            yield
        except Refused:
            raise
        except MpicollError as error:
            problem = str(error)
        agreed = self.agree(problem)
        if agreed is not None:
            raise Refused(agreed, status)


def start(thread_level: str, *, diagnose: bool = False) -> World:
    """Begin MPI at a thread level (before anything imports `mpi4py.MPI`), and find out where we are.

    Raises `Refused` in each of many worlds of one rank, which nobody wants; unless `diagnose`, for a verb
    that is to say what is wrong.
    """
    # Forking a child (git) is safe only before MPI has begun.
    facts = (machine.describe_machine(), machine.software()) if is_first() else ({}, {})
    import mpi4py

    if "mpi4py.MPI" in sys.modules:
        raise MpicollError("MPI was imported before its thread level could be chosen")
    mpi4py.rc.thread_level = thread_level
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[-1]
        raise MpicollError(
            f"no MPI library can be loaded ({reason}): load your cluster's, or pip install 'mpicoll[mpich]'"
        ) from None

    from mpicoll.topology import Topology

    levels = {MPI.THREAD_SINGLE: "single", MPI.THREAD_FUNNELED: "funneled",
              MPI.THREAD_SERIALIZED: "serialized", MPI.THREAD_MULTIPLE: "multiple"}  # fmt: skip
    control = MPI.COMM_WORLD.Dup()
    if not diagnose and (problem := launcher_problem(control.size)):
        raise Refused(problem)
    here = (MPI.Get_processor_name(), machine.compact(machine.affinity()), machine.cpu_quota())
    hosts, cpus, quota = map(list, zip(*control.allgather(here), strict=True))
    if control.rank == 0 and not facts[0]:
        facts = (machine.describe_machine(), machine.software())
    name, numbers = MPI.get_vendor()
    described, software = control.bcast(facts, root=0)
    topology = Topology.of(control)
    control.Barrier()  # from here on no rank computes, and each sleeps
    busy = [one for one in control.allgather(machine.busy_cpus()) if one is not None]
    return World(
        control=control,
        rank=control.rank,
        size=control.size,
        thread_level=levels[MPI.Query_thread()],
        hosts=hosts,
        cpus=cpus,
        topology=topology,
        quota=quota,
        machine=described,
        software=software,
        # Without addresses: the wheels' text names the index they came from, which is no fact about them.
        library=re.sub(r"https?://\S+", "", MPI.Get_library_version()).strip(),
        vendor=f"{name} {'.'.join(map(str, numbers))}",
        busy=max(busy, default=None),
    )


class StopSignals:
    """SIGINT, SIGTERM and SIGUSR1 set a flag that ranks look at together between measurements.

    A second signal of the same kind does what it would have done without us. SIGUSR1 is how a batch system
    warns of the time limit; launchers pass it on, sometimes twice and sometimes late, so that from the first
    one on it is ignored. The exit status is 128 + the signal's number in every case.
    """

    def __init__(self) -> None:
        self.received = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        """Begin to catch."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        """Stop catching."""
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_IGN if number == signal.SIGUSR1 and self.received else handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = self.received or number
        signal.signal(number, signal.SIG_IGN if number == signal.SIGUSR1 else self._before[number])

    def check(self, world: World) -> None:
        """Raise `Stopped` on all ranks if any of them was told to stop. Collective."""
        from mpi4py import MPI

        number = world.control.allreduce(self.received, op=MPI.MAX)
        if number:
            raise Stopped(number)


def abort(error: BaseException) -> NoReturn:
    """Say what went wrong on this rank and end the whole job: other ranks may be waiting for it."""
    from mpi4py import MPI

    print(f"mpicoll: rank {MPI.COMM_WORLD.rank} failed: {in_words(error)}", file=sys.stderr, flush=True)
    status = 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    MPI.COMM_WORLD.Abort(status)
    raise SystemExit(status)


def in_words(error: BaseException) -> str:
    """One line for what the world or the user did; for what should not have happened, where it did."""
    if isinstance(error, KeyboardInterrupt):
        return "stopped by SIGINT"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, (OSError, MemoryError, MpicollError)):
        return str(error) or "out of memory"
    return "\n" + "".join(traceback.format_exception(error))


@contextlib.contextmanager
def abort_on_error() -> Iterator[None]:
    """Within: an exception that only this rank may have seen ends the job instead of hanging it."""
    try:
        yield
    except Refused:
        raise
    except BaseException as error:
        mpi = sys.modules.get("mpi4py.MPI")
        if mpi is None or mpi.Is_finalized() or mpi.COMM_WORLD.size == 1:
            raise
        abort(error)
