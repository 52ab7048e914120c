"""What is registered with a `GradientReducer`: checked one by one, and compared between ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from . import device
from .buckets import Parameter, first_difference
from .errors import ArgumentError


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


def register(name: str, array: Any, wire: Any, *, average: bool) -> Parameter:
    """What is registered for an array. Raises `ArgumentError` for one that cannot be reduced."""
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
