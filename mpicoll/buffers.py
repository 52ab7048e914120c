"""User buffers: from mpi4py's buffer specifications to an address, a count and a datatype.

Accepted, as in mpi4py: ``buf``, ``[buf, datatype]``, ``[buf, count]``, ``[buf, count, datatype]``,
``[buf, (count, displacement), datatype]`` and ``[buf, count, displacement, datatype]``, where `buf` is
anything with the buffer protocol or in device memory (a CuPy array, or whatever has
``__cuda_array_interface__``), `datatype` an `MPI.Datatype` or its type code, and counts and
displacements are in elements. Everything that can be wrong with a buffer is found here, before any
message is sent.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import index
from typing import Any

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from .device import inspect, is_device_array
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
    `owner` keeps the memory alive. `device`: it is device memory, and `unfit` says why MPI must not be
    given it, if so.
    """

    address: int
    count: int
    datatype: MPI.Datatype
    extent: int
    dtype: np.dtype[Any]
    owner: Any
    device: bool = False
    unfit: str = ""

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
        if not self.count or not other.count:
            return False
        return self.address < other.address + other.nbytes and other.address < self.address + self.nbytes


def parse(spec: Any, role: str, *, writable: bool) -> Buffer:
    """Read a buffer specification; `role` names it in errors ("sendbuf", "recvbuf").

    Raises `ArgumentError` for anything that cannot be sent or received as it stands.
    """
    data, count, displacement, datatype = _split(spec, role)
    if data is MPI.IN_PLACE:
        raise ArgumentError(f"{role}: MPI.IN_PLACE cannot stand here; give the buffer that holds the data")
    if data is MPI.BOTTOM:
        raise ArgumentError(f"{role}: MPI.BOTTOM has no length of its own; give a buffer")
    device, unfit = is_device_array(data), ""
    dtype: np.dtype[Any] | None
    if device:
        address, nbytes, dtype, owner, unfit = inspect(data, role, writable=writable)
    else:
        address, nbytes, dtype, owner = _memory(data, role, writable=writable)
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
    return Buffer(address, count, datatype, extent, dtype, owner, device, unfit)


def parse_parts(
    spec: Any, role: str, size: int, *, writable: bool, vector: bool
) -> tuple[Buffer, list[int], list[int]]:
    """Read a specification of one part per rank: the buffer, the parts' counts and displacements.

    Without `vector`, a count is that of one part, and without a count the buffer is cut in `size` equal
    parts. With `vector`, as in mpi4py, counts and displacements are sequences of `size` integers, or one
    integer for all; without displacements the parts lie one after the other.
    """
    if not vector:
        data, count, displacement, datatype = _split(spec, role)
        if count is not None:
            whole = parse([data, (count * size, displacement), datatype], role, writable=writable)
        else:
            whole = parse(spec, role, writable=writable)
            if whole.count % size:
                raise ArgumentError(f"{role}: {whole.count} elements cannot be cut in {size} equal parts")
            count = whole.count // size
        return whole, [count] * size, [count * part for part in range(size)]
    data, counts, displacements, datatype = _split_vector(spec, role)
    whole = parse([data, datatype] if datatype is not None else data, role, writable=writable)
    if counts is None:
        base, longer = divmod(whole.count, size)
        counts = [base + (part < longer) for part in range(size)]
    counts = _integers(counts, [counts] * size, size, f"{role}: counts")
    if displacements is None:
        displacements = list(accumulate(counts, initial=0))[:-1]
    strides = [displacements * part for part in range(size)] if isinstance(displacements, int) else []
    displacements = _integers(displacements, strides, size, f"{role}: displacements")
    for part, (count, at) in enumerate(zip(counts, displacements, strict=True)):
        if count < 0 or (count and not 0 <= at <= whole.count - count):
            raise ArgumentError(
                f"{role}: part {part} ({count} elements at {at}) is outside the buffer's {whole.count}"
            )
    if writable:
        _disjoint(counts, displacements, role)
    return whole, counts, displacements


def _disjoint(counts: Sequence[int], displacements: Sequence[int], role: str) -> None:
    end = 0
    for at, count in sorted((at, count) for at, count in zip(displacements, counts, strict=True) if count):
        if at < end:
            raise ArgumentError(f"{role}: parts overlap at element {at}")
        end = at + count


def _integers(values: Any, repeated: list[Any], size: int, what: str) -> list[int]:
    try:
        result = [index(v) for v in (repeated if not hasattr(values, "__len__") else values)]
    except TypeError as error:
        raise ArgumentError(f"{what}: expected integers, got {values!r}") from error
    if len(result) != size:
        raise ArgumentError(f"{what}: expected {size} integers, got {len(result)}")
    return result


def _split_vector(spec: Any, role: str) -> tuple[Any, Any, Any, Any]:
    """(data, counts, displacements, datatype) of a specification with one part per rank."""
    if not isinstance(spec, list | tuple):
        return spec, None, None, None
    if not 2 <= len(spec) <= 4:
        raise ArgumentError(f"{role}: a buffer specification has 2 to 4 items, not {len(spec)}")
    if len(spec) == 4:
        return tuple(spec)
    counts: Any = spec[1]
    datatype = spec[2] if len(spec) == 3 else None
    if len(spec) == 2 and isinstance(counts, MPI.Datatype | str):
        counts, datatype = None, counts
    displacements = None
    if isinstance(counts, tuple):
        if len(counts) != 2:
            raise ArgumentError(f"{role}: expected (counts, displacements), got {counts!r}")
        counts, displacements = counts
    return spec[0], counts, displacements, datatype


def _split(spec: Any, role: str) -> tuple[Any, int | None, int, MPI.Datatype | None]:
    """(data, count, displacement, datatype) of a specification."""
    if not isinstance(spec, list | tuple):
        return spec, None, 0, None
    count: Any = None
    datatype: Any = None
    displacement: Any = 0
    if not 2 <= len(spec) <= 4:
        raise ArgumentError(f"{role}: a buffer specification has 2 to 4 items, not {len(spec)}")
    if len(spec) == 4:
        count, displacement, datatype = spec[1:]
    elif len(spec) == 3:
        count, datatype = spec[1:]
    elif isinstance(spec[1], MPI.Datatype | str):
        datatype = spec[1]
    else:
        count = spec[1]
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
        return spec[0], None if count is None else index(count), index(displacement or 0), datatype
    except TypeError as error:
        raise ArgumentError(f"{role}: count {count!r} or displacement is not an integer") from error


def _memory(data: Any, role: str, *, writable: bool) -> tuple[int, int, np.dtype[Any] | None, Any]:
    """(address, bytes, numpy type or None, owner) of an object with the buffer protocol.

    The owner exports the buffer: while it lives, the memory can neither go away nor move.
    """
    if data is None:
        return 0, 0, None, None
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
    return address, data.nbytes, data.dtype, data


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
