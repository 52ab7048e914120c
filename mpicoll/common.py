"""What all ranks of a communicator have in common, settled when it is made."""

from __future__ import annotations

import os

import numpy as np
from mpi4py import MPI

from .agree import Agreement
from .cost import Machine
from .errors import ArgumentError
from .native import native_status
from .probe import Verdict
from .runner import check_engine, may_thread
from .select import calibration


def timeout() -> float | None:
    """Seconds without progress that end a wait. Raises `ArgumentError` for what is no number."""
    text = os.environ.get("MPICOLL_TIMEOUT")
    try:
        return float(text) if text else None
    except ValueError:
        raise ArgumentError(f"MPICOLL_TIMEOUT is a number of seconds, not {text!r}") from None


def agree_on_engine(
    comm: MPI.Intracomm, agreement: Agreement, engine: str | None, calibrated: str | None, *, trace: bool
) -> tuple[str, Machine | None]:
    """The engine of all; and the calibration, which must say the same on all ranks, as it chooses."""
    chosen, machine, error, native = "", None, None, False
    try:
        native = native_status()[0]
        machine = calibration(calibrated)
        chosen = check_engine("python" if trace and engine is None else engine)
        if trace and chosen == "native":
            raise ArgumentError("MPICOLL_TRACE needs engine='python': the native engine prints nothing")
    except Exception as caught:  # whatever it is: the others are waiting
        error = caught
    # A rank without the extension makes all use the reference engine: results must not differ.
    everywhere = comm.allreduce(native, MPI.MIN)
    if chosen == "native" and not everywhere and not (engine or os.environ.get("MPICOLL_ENGINE")):
        chosen = "python"
    digest = machine.digest if machine else "none"
    agreement.settle(("engine", chosen, "calibration", digest), error)
    return chosen, machine


def agree_on_threads(comm: MPI.Intracomm) -> bool:
    """Whether every rank may have a thread call MPI: for two ranks that decides on an algorithm, too."""
    return bool(comm.allreduce(may_thread(), MPI.MIN))


def agree_on_aware(comm: MPI.Intracomm, mine: Verdict) -> Verdict:
    """Whether MPI may be given device memory: if every rank has the proof, as all reduce in one place."""
    lacking = np.array([comm.size if mine.aware else comm.rank, -bool(mine.aware)], np.int64)
    comm.Allreduce(MPI.IN_PLACE, lacking, MPI.MIN)
    first, some = int(lacking[0]), bool(lacking[1])
    if first == comm.size or not some:
        return mine
    how: str = comm.bcast(mine.how, root=first)
    return mine if first == comm.rank else Verdict(False, f"on rank {first}: {how}")
