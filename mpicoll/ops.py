"""Reduction operations: which are defined for which datatype, and what computes them.

A predefined operation on a number is computed by a numpy ufunc (python engine) or by a kernel of
`_runner.c` (native engine); MAXLOC and MINLOC and operations made by `MPI.Op.Create` are computed by
MPI_Reduce_local. The table of valid combinations is the MPI standard's (MPI 4.1, section 6.9.2).
MAX and MIN of a NaN and a number is NaN, on every rank.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from mpi4py import MPI

from .buffers import PAIRS, Buffer
from .errors import ArgumentError
from .program import LANDING, Combine, Copy

_REAL = "sum prod max min"
_LOGICAL = "land lor lxor"
_BITWISE = "band bor bxor"
_BY_KIND = {  # numpy kind of the datatype -> names of the operations that MPI defines for it
    "i": f"{_REAL} {_LOGICAL} {_BITWISE}",
    "u": f"{_REAL} {_LOGICAL} {_BITWISE}",
    "f": _REAL,
    "c": "sum prod",
    "b": _LOGICAL,
}
_UFUNCS: dict[str, Any] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "land": np.logical_and,
    "lor": np.logical_or,
    "lxor": np.logical_xor,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}
_NAMES = {
    op.handle: name
    for name, op in {
        **{name: getattr(MPI, name.upper()) for name in _UFUNCS},
        "maxloc": MPI.MAXLOC,
        "minloc": MPI.MINLOC,
        "replace": MPI.REPLACE,
        "no_op": MPI.NO_OP,
    }.items()
}


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation on a datatype. `ufunc` is None where MPI_Reduce_local computes it."""

    name: str
    op: MPI.Op
    commutative: bool
    ufunc: Callable[..., Any] | None
    kernel: str | None  # name of the native kernel, such as "sum_f4"


def name_of(op: MPI.Op) -> str:
    """The operation's name, such as "sum"; "user" for one made by `MPI.Op.Create`."""
    return _NAMES.get(op.handle, "user")


def resolve(op: MPI.Op, buffer: Buffer) -> Operation:
    """The operation for a buffer's datatype.

    Raises `ArgumentError`, naming the valid choices, where MPI does not define the combination.
    """
    if not isinstance(op, MPI.Op):
        raise ArgumentError(f"op: expected an MPI.Op such as MPI.SUM, got {op!r}")
    if op == MPI.OP_NULL:
        raise ArgumentError("op: MPI.OP_NULL is no operation (was it freed?)")
    name = name_of(op)
    if name == "user":
        return Operation(name, op, op.Is_commutative(), None, None)
    type_name = buffer.datatype.Get_name() or str(buffer.dtype)
    if any(buffer.datatype == pair for pair in PAIRS.values()):
        if name not in ("maxloc", "minloc"):
            raise ArgumentError(f"MPI.{name.upper()} is not defined for {type_name}; use MAXLOC or MINLOC")
        return Operation(name, op, True, None, None)
    valid = _BY_KIND.get(buffer.dtype.kind, "")
    if buffer.datatype == MPI.BYTE:
        valid = _BITWISE
    elif buffer.datatype in (MPI.CHAR, MPI.WCHAR) or not buffer.datatype.is_predefined:
        valid = ""
    elif buffer.datatype == MPI.LOGICAL:
        valid = _LOGICAL
    if name not in valid.split():
        choices = valid.upper().replace(" ", ", ") or "only operations made by MPI.Op.Create"
        raise ArgumentError(f"MPI.{name.upper()} is not defined for {type_name}; valid: {choices}")
    return Operation(name, op, True, _UFUNCS[name], kernel_name(name, buffer.dtype))


def kernel_name(name: str, dtype: np.dtype[Any]) -> str:
    """What `_kernels.c` calls an operation on a type, if it has it."""
    special = {"g": "fg", "F": "c4", "D": "c8", "G": "cg", "?": "u1"}
    return f"{name}_{special.get(dtype.char) or f'{dtype.kind}{dtype.itemsize}'}"


def ufunc_of(name: str) -> Callable[..., Any]:
    """NumPy's function for an operation."""
    return _UFUNCS[name]  # type: ignore[no-any-return]


def local_reduction(step: Combine) -> list[Copy | Combine]:
    """Three-operand combine by MPI_Reduce_local, which knows only ``inout = in ⊕ inout``.

    A landing region may be overwritten, a user's buffer other than the result may not.
    """
    out, left, right = step
    if right == out:
        return [step]
    if right.space == LANDING:
        return [Combine(right, left, right), Copy(out, right)]
    return [Copy(out, right), Combine(out, left, out)]
