"""mpicoll: collective algorithms as data, run over mpi4py point-to-point messages.

>>> import mpicoll                                       # doctest: +SKIP
>>> comm = mpicoll.Comm(MPI.COMM_WORLD)                  # doctest: +SKIP
>>> comm.Allreduce(x, y, op=MPI.SUM, algorithm="ring")   # doctest: +SKIP

What needs MPI (`Comm`, `Plan`, `native_status`) is loaded on first use, so that schedules can be listed,
proved, counted and drawn where there is no MPI.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import algorithms as algorithms  # registers them
from .errors import (
    ArgumentError,
    MismatchError,
    MpicollError,
    RevokedError,
    ScheduleError,
    TimeoutExpired,
    Unsupported,
    VerificationFailed,
)
from .registry import algorithm, get
from .registry import algorithms as catalogue
from .schedule import Recv, Round, Send, Side, Window

if TYPE_CHECKING:
    from .comm import Comm
    from .mesh import Mesh
    from .native import native_status
    from .overlap import GradientReducer
    from .requests import Request
    from .runner import Plan

__version__ = "0.1.0"
_with_mpi = {
    "Comm": "comm",
    "GradientReducer": "overlap",
    "Mesh": "mesh",
    "Plan": "runner",
    "Request": "requests",
    "native_status": "native",
}


def __getattr__(name: str) -> Any:
    if name in _with_mpi:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_with_mpi[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "ArgumentError",
    "Comm",
    "GradientReducer",
    "Mesh",
    "MismatchError",
    "MpicollError",
    "Plan",
    "Recv",
    "Request",
    "RevokedError",
    "Round",
    "ScheduleError",
    "Send",
    "Side",
    "TimeoutExpired",
    "Unsupported",
    "VerificationFailed",
    "Window",
    "algorithm",
    "catalogue",
    "get",
    "native_status",
]
