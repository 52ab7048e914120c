"""How gradients are cut into buckets: bookkeeping alone, without arrays and without MPI.

Gradients of one type lie one after the other in one flat array, in the order in which they become ready.
A bucket is a slice of it, so that a gradient is contiguous even where two buckets share it.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

from .errors import ArgumentError


class Parameter(NamedTuple):
    """What ranks must agree on: name, shape, type of the gradient and of what travels of it."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    wire: str
    itemsize: int  # bytes of an element on the wire

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)


class Piece(NamedTuple):
    """Elements ``start:stop`` of a parameter's flat gradient."""

    parameter: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Bucket:
    """Elements ``start:stop`` of the flat array of the type `wire`, and whose they are."""

    wire: str
    start: int
    stop: int
    itemsize: int
    pieces: tuple[Piece, ...]

    @property
    def nbytes(self) -> int:
        """Bytes that travel."""
        return (self.stop - self.start) * self.itemsize


@dataclass(frozen=True, slots=True)
class Layout:
    """Where everything lies. `buckets` are in the order in which they will be full."""

    order: tuple[int, ...]  # parameters as they are expected to become ready
    buckets: tuple[Bucket, ...]
    offsets: tuple[int, ...]  # of each parameter in the flat array of its type
    lengths: dict[str, int]  # elements of the flat array of each type


def bucket_sizes(bucket_bytes: Any, first_bytes: Any = None) -> tuple[int, int]:
    """The sizes of all buckets and of the first [B]; by default a quarter.

    Raises `ArgumentError` for what is no whole number of bytes, or less than one.
    """

    def checked(what: str, nbytes: Any) -> int:
        try:
            number = operator.index(nbytes)
        except TypeError:
            number = 0
        if number < 1:
            raise ArgumentError(f"{what} must be a number of bytes, at least 1, not {nbytes!r}")
        return number

    most = checked("bucket_bytes", bucket_bytes)
    return most, max(1, most // 4) if first_bytes is None else checked("first_bucket_bytes", first_bytes)


def lay_out(
    parameters: Sequence[Parameter], order: Sequence[int], bucket_bytes: int, first_bytes: int
) -> Layout:
    """Fill buckets with the parameters in `order`.

    A bucket is closed before a gradient that would take it beyond `bucket_bytes`. The very first one is
    closed at `first_bytes` already, if that is less, so that communication begins early. A gradient larger
    than `bucket_bytes` is cut in equal pieces, each a bucket of its own (what was waiting travels with the
    first, if there is room); none is cut for `first_bytes`.

    Raises `ArgumentError` for bucket sizes below one byte.
    """
    bucket_bytes, first_bytes = bucket_sizes(bucket_bytes, first_bytes)
    offsets, lengths = [0] * len(parameters), dict.fromkeys((p.wire for p in parameters), 0)
    filling: dict[str, list[Piece]] = {wire: [] for wire in lengths}
    limits = dict.fromkeys(lengths, bucket_bytes)
    if order:
        limits[parameters[order[0]].wire] = min(first_bytes, bucket_bytes)
    groups: list[list[Piece]] = []

    def close(wire: str) -> None:
        if filling[wire]:
            groups.append(filling[wire])
            filling[wire], limits[wire] = [], bucket_bytes

    for index in order:
        parameter = parameters[index]
        wire, size, itemsize = parameter.wire, parameter.size, parameter.itemsize
        offsets[index] = lengths[wire]
        lengths[wire] += size
        held = sum(piece.stop - piece.start for piece in filling[wire])
        pieces = _cut(index, size, bucket_bytes // itemsize)
        if (held + pieces[0].stop) * itemsize > limits[wire]:
            close(wire)
        if size:
            filling[wire].append(pieces[0])
        if len(pieces) > 1:
            close(wire)
            groups += [[piece] for piece in pieces[1:]]
    for wire in filling:
        close(wire)
    turn = {index: turn for turn, index in enumerate(order)}
    groups.sort(key=lambda pieces: turn[pieces[-1].parameter])
    buckets = tuple(_bucket(pieces, parameters, offsets) for pieces in groups)
    return Layout(tuple(order), buckets, tuple(offsets), lengths)


def _cut(index: int, size: int, most: int) -> list[Piece]:
    """Equal pieces of at most `most` elements (at least one); a single one if they are no more."""
    count = max(1, -(-size // max(1, most)))
    edges = [size * k // count for k in range(count + 1)]
    return [Piece(index, low, high) for low, high in pairwise(edges)]


def _bucket(pieces: list[Piece], parameters: Sequence[Parameter], offsets: Sequence[int]) -> Bucket:
    first, last = pieces[0], pieces[-1]
    like = parameters[first.parameter]
    start, stop = offsets[first.parameter] + first.start, offsets[last.parameter] + last.stop
    return Bucket(like.wire, start, stop, like.itemsize, tuple(pieces))


def first_difference(first: Sequence[Parameter], other: Sequence[Parameter], rank: int) -> str:
    """What `rank` registered otherwise than rank 0, in words."""
    for number, (one, two) in enumerate(zip(first, other, strict=False)):
        if one != two:
            return f"number {number} is {describe(one)} on rank 0, {describe(two)} on rank {rank}"
    return f"there are {len(first)} on rank 0, {len(other)} on rank {rank}"


def describe(parameter: Parameter) -> str:
    """A parameter in words."""
    travels = f", sent as {parameter.wire}" if parameter.wire != parameter.dtype else ""
    return f"{parameter.name!r} {parameter.shape} {parameter.dtype}{travels}"


def listed(names: Sequence[str], most: int = 8) -> str:
    """Names for a message: all of them, or the first few and how many more."""
    text = ", ".join(map(repr, names[:most]))
    return text if len(names) <= most else f"{text} and {len(names) - most} more"
