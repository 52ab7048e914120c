"""What is registered with a `GradientReducer`, checked and compared; and steps that are left open."""

from __future__ import annotations

import atexit
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from . import device
from .agree import Agreement, leave_last_words, tell_last_words
from .buckets import Parameter, first_difference
from .errors import ArgumentError
from .requests import background_held


def memory_of(gradients: Mapping[str, Any]) -> Any:
    """The module that makes and computes arrays of their kind: NumPy, or CuPy for device memory.

    Raises `ArgumentError` for a mixture.
    """
    on_device = [device.is_device_array(array) for array in gradients.values()]
    if any(on_device) and not all(on_device):
        raise ArgumentError("some gradients are in device memory and some are not: use a reducer for each")
    return device.cupy() if any(on_device) else np


def mismatch(everyone: Sequence[tuple[Any, ...]]) -> str:
    """Where ranks differ, in words: a thousand parameters are too many to print.

    `everyone` has each rank's parameters, and its options.
    """
    # Compared as `Agreement` does it, by what is written: True is another option than 1.
    rank, other = next((r, one) for r, one in enumerate(everyone) if repr(one) != repr(everyone[0]))
    if other[0] != everyone[0][0]:
        return f"gradients differ between ranks: {first_difference(everyone[0][0], other[0], rank)}"
    return f"options differ between ranks: {everyone[0][1:]} on rank 0, {other[1:]} on rank {rank}"


def check_array(name: str, array: Any, *, writable: bool) -> None:
    """Raise `ArgumentError` for what is no array, or, if its average goes there, cannot be written."""
    if not isinstance(array, np.ndarray):
        if not device.is_device_array(array):
            raise ArgumentError(f"gradient {name!r} is no array but of type {type(array).__name__}")
    elif writable and not array.flags.writeable:
        raise ArgumentError(f"gradient {name!r} is read-only: its average could not be put there")


def register(name: str, array: Any, wire: Any, *, average: bool, views: bool) -> Parameter:
    """What is registered for an array. Raises `ArgumentError` for one that cannot be reduced."""
    check_array(name, array, writable=not views)
    dtype = array.dtype
    if dtype.kind not in "fc" and (average or dtype.kind not in "iu"):
        raise ArgumentError(f"gradient {name!r} has type {dtype}: only real and complex ones have an average")
    sent = dtype if wire is None else _wire_dtype(wire)
    if sent.kind != dtype.kind or sent.itemsize > dtype.itemsize:
        raise ArgumentError(f"gradient {name!r} has type {dtype}, which cannot be sent as {sent}")
    if MPI.Datatype.fromcode(sent.char) == MPI.DATATYPE_NULL:
        raise ArgumentError(f"this MPI library has no type for {sent}; use float32 on the wire")
    return Parameter(name, tuple(array.shape), dtype.str, sent.str, sent.itemsize)


def _wire_dtype(wire: Any) -> np.dtype[Any]:
    try:
        dtype: np.dtype[Any] = np.dtype(wire)
    except TypeError:
        raise ArgumentError(f"wire_dtype {wire!r} is no NumPy type; float16 and float32 are") from None
    return dtype


def digest(array: Any) -> int:
    """A checksum of an array's bytes, from any memory."""
    return zlib.crc32(device.to_host(array).tobytes())


def note_rows(parts: dict[int, Any], index: int, parameter: Parameter, rows: slice | None) -> tuple[int, int]:
    """The elements low..high of a flat gradient that `rows` of it are (None: all); noted in `parts[index]`.

    `parts` has an array for each parameter that became ready in part: whether each of its rows did.
    Raises `ArgumentError` for no rows, and for some that were ready before.
    """
    if rows is None and index not in parts:
        return 0, parameter.size
    name, count = repr(parameter.name), parameter.shape[0] if parameter.shape else 0
    if not isinstance(rows, slice | None):
        raise ArgumentError(f"rows of gradient {name} are a slice, not {rows!r}")
    start, stop, step = (rows or slice(None)).indices(count)
    if step != 1 or start >= stop:
        raise ArgumentError(f"gradient {name} of shape {parameter.shape} has no adjoining rows {rows}")
    ready = parts.setdefault(index, np.zeros(count, bool))
    if ready[start:stop].any():
        raise ArgumentError(f"rows of gradient {name} became ready twice in a step; was wait() forgotten?")
    ready[start:stop] = True
    width = parameter.size // count
    return start * width, stop * width


class State:
    """What must be known at the end of the program, or of the reducer's life: whether a step is open."""

    def __init__(self, agreement: Agreement, rank: int) -> None:
        self.agreement, self.rank, self._open = agreement, rank, False

    @property
    def open(self) -> bool:
        """Whether a gradient was ready, and not waited for yet."""
        return self._open

    @open.setter
    def open(self, value: bool) -> None:
        self._open = value
        if value:
            _open[self] = None
        else:
            _open.pop(self, None)


_open: dict[State, None] = {}


def collected(state: State) -> None:
    """Called when a reducer is garbage: other ranks may be waiting for this one."""
    if state.open and not MPI.Is_finalized():
        with background_held():
            leave_last_words(state.agreement, _left_open(state))
    state.open = False


@atexit.register
def _program_ends() -> None:
    """Called in the main thread, when all others are over."""
    if not MPI.Is_finalized():
        with background_held():
            tell_last_words()
            for state in list(_open):  # a finalizer may take one out
                state.agreement.revoke(_left_open(state))


def _left_open(state: State) -> str:
    return f"rank {state.rank} ended in the middle of a step, with gradients not ready"
