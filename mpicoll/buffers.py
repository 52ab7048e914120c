"""User buffers: from mpi4py's buffer specifications to an address, a count and a datatype.

Accepted, as in mpi4py: ``buf``, ``[buf]``, ``[buf, datatype]``, ``[buf, count]``,
``[buf, count, datatype]`` and ``[buf, (count, displacement), datatype]``, where `buf` is anything with
the buffer protocol, `datatype` an `MPI.Datatype` or its type code, and counts and displacements are in
elements. Everything that can be wrong with a buffer is found here, before any message is sent.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from .errors import ArgumentError

# The pair types of MAXLOC and MINLOC, by the numpy codes of their two fields.
PAIRS: dict[tuple[str, str], MPI.Datatype] = {
    ("f", "i"): MPI.FLOAT_INT,
    ("d", "i"): MPI.DOUBLE_INT,
    ("l", "i"): MPI.LONG_INT,
    ("i", "i"): MPI.TWOINT,
    ("h", "i"): MPI.SHORT_INT,
    ("g", "i"): MPI.LONG_DOUBLE_INT,
}


@dataclass(frozen=True, slots=True)
class Buffer:
    """A contiguous run of `count` elements at `address`; `extent` is an element's size in bytes.

    `dtype` is the numpy equivalent of `datatype`, an opaque void type where there is none.
    `owner` keeps the memory alive.
    """

    address: int
    count: int
    datatype: MPI.Datatype
    extent: int
    dtype: np.dtype[Any]
    owner: Any

    @property
    def nbytes(self) -> int:
        """Length in bytes."""
        return self.count * self.extent

    @property
    def type_key(self) -> str:
        """A name of the datatype that is equal on all ranks."""
        return self.dtype.str if self.dtype.kind != "V" else self.datatype.Get_name() or str(self.dtype)

    def array(self) -> npt.NDArray[Any]:
        """The buffer as a flat numpy array that shares its memory."""
        if not self.count:
            return np.empty(0, self.dtype)
        memory: Any = MPI.buffer.fromaddress(self.address, self.nbytes)
        array: npt.NDArray[Any] = np.frombuffer(memory, self.dtype)
        return array

    def overlaps(self, other: Buffer) -> bool:
        """Whether the two share memory."""
        return self.address < other.address + other.nbytes and other.address < self.address + self.nbytes


def parse(spec: Any, role: str, *, writable: bool) -> Buffer:
    """Read a buffer specification; `role` names it in errors ("sendbuf", "recvbuf").

    Raises `ArgumentError` for anything that cannot be sent or received as it stands.
    """
    data, count, displacement, datatype = _split(spec, role)
    address, nbytes, dtype = _memory(data, role, writable=writable)
    if datatype is None:
        if dtype is None:
            raise ArgumentError(f"{role}: the element type cannot be told; give [buffer, MPI datatype]")
        datatype = _datatype_of(dtype, role)
    extent, dtype = _extent(datatype, role)
    if displacement < 0 or (count is not None and count < 0):
        raise ArgumentError(f"{role}: count and displacement must not be negative, got {spec[1:]}")
    available = nbytes // extent - displacement
    if count is None:
        if nbytes % extent:
            raise ArgumentError(f"{role}: {nbytes} bytes are no multiple of {datatype.Get_name()}'s {extent}")
        count = max(available, 0)
    if count > available:
        raise ArgumentError(f"{role}: {count} elements were asked for, the buffer holds {available}")
    address += displacement * extent
    if count and address % dtype.alignment:
        raise ArgumentError(f"{role}: its memory is not aligned for {dtype}; copy it first")
    return Buffer(address, count, datatype, extent, dtype, data)


def _split(spec: Any, role: str) -> tuple[Any, int | None, int, MPI.Datatype | None]:
    """(data, count, displacement, datatype) of a specification."""
    if not isinstance(spec, list | tuple):
        return spec, None, 0, None
    count: Any = None
    datatype: Any = None
    rest: Sequence[Any] = spec[1:]
    if not 1 <= len(spec) <= 3:
        raise ArgumentError(f"{role}: a buffer specification has 1 to 3 items, not {len(spec)}")
    if len(rest) == 2:
        count, datatype = rest
    elif len(rest) == 1:
        if isinstance(rest[0], MPI.Datatype | str):
            datatype = rest[0]
        else:
            count = rest[0]
    displacement = 0
    if isinstance(count, list | tuple):
        if len(count) != 2:
            raise ArgumentError(f"{role}: expected (count, displacement), got {count!r}")
        count, displacement = count
    if isinstance(datatype, str):
        try:
            datatype = MPI.Datatype.fromcode(datatype)
        except ValueError as error:
            raise ArgumentError(f"{role}: no MPI datatype for the code {datatype!r}") from error
    if datatype is not None and not isinstance(datatype, MPI.Datatype):
        raise ArgumentError(f"{role}: expected an MPI datatype, got {datatype!r}")
    try:
        return spec[0], None if count is None else int(count), int(displacement), datatype
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"{role}: count {count!r} is not an integer") from error


def _memory(data: Any, role: str, *, writable: bool) -> tuple[int, int, np.dtype[Any] | None]:
    """(address, bytes, numpy type or None) of an object with the buffer protocol."""
    if data is None:
        return 0, 0, None
    if hasattr(data, "__cuda_array_interface__") and not isinstance(data, np.ndarray):
        raise ArgumentError(f"{role}: device buffers are not supported yet; copy to a numpy array first")
    if not isinstance(data, np.ndarray):
        try:
            data = np.asarray(memoryview(data))
        except (TypeError, ValueError) as error:
            raise ArgumentError(f"{role}: {type(data).__name__} is not a buffer: {error}") from error
    if not (data.flags.c_contiguous or data.flags.f_contiguous):
        raise ArgumentError(f"{role}: the array is not contiguous; pass numpy.ascontiguousarray(...)")
    if writable and not data.flags.writeable:
        raise ArgumentError(f"{role}: the buffer is read-only")
    if not data.dtype.isnative:
        raise ArgumentError(f"{role}: {data.dtype} is not in native byte order; convert it first")
    address: int = data.__array_interface__["data"][0]
    return address, data.nbytes, data.dtype


def _datatype_of(dtype: np.dtype[Any], role: str) -> MPI.Datatype:
    """The MPI datatype of a numpy type, pair types included."""
    if dtype.names is not None:
        pair = tuple(dtype[name].char for name in dtype.names)
        found = PAIRS.get(pair) if len(pair) == 2 else None
        if found is None:
            raise ArgumentError(f"{role}: no MPI datatype for {dtype}; pairs end in an int32, as (f8, i4)")
        if found.extent != dtype.itemsize:
            raise ArgumentError(
                f"{role}: {dtype} has {dtype.itemsize} bytes, {found.Get_name()} has {found.extent}; "
                "make the numpy type with align=True"
            )
        return found
    try:
        datatype = MPI.Datatype.fromcode(dtype.char)
    except ValueError as error:
        raise ArgumentError(f"{role}: no MPI datatype for numpy type {dtype}") from error
    if datatype == MPI.DATATYPE_NULL:
        raise ArgumentError(f"{role}: this MPI has no datatype for numpy type {dtype}")
    return datatype


_KNOWN: dict[int, tuple[int, np.dtype[Any]]] = {}


def _extent(datatype: MPI.Datatype, role: str) -> tuple[int, np.dtype[Any]]:
    """Extent in bytes and numpy type of an MPI datatype; only gap-free ones can be cut in blocks."""
    known = _KNOWN.get(datatype.handle)
    if known is not None:
        return known
    if datatype == MPI.DATATYPE_NULL:
        raise ArgumentError(f"{role}: the datatype is MPI.DATATYPE_NULL (this MPI lacks the type?)")
    lower, extent = datatype.Get_extent()
    for fields, pair in PAIRS.items():
        if datatype == pair:
            dtype = np.dtype([("value", fields[0]), ("index", fields[1])], align=True)
            if dtype.itemsize != extent:
                dtype = np.dtype((np.void, extent))
            break
    else:
        if lower != 0 or extent != datatype.Get_size() or extent <= 0:
            raise ArgumentError(
                f"{role}: {datatype.Get_name() or 'the datatype'} has gaps (size {datatype.Get_size()}, "
                f"extent {extent}, lower bound {lower}); only contiguous datatypes can be cut in blocks"
            )
        dtype = np.dtype((np.void, extent))
        if datatype.is_predefined:
            # A type that numpy lacks is still a run of bytes.
            with contextlib.suppress(TypeError, ValueError):
                dtype = np.dtype(datatype.typestr)
            if dtype.itemsize != extent:
                dtype = np.dtype((np.void, extent))
    if datatype.is_predefined:
        _KNOWN[datatype.handle] = extent, dtype
    return extent, dtype
