"""Curves through measured times: lines in pieces, robust against outliers, with switches where they pay.

Errors count relative to the time, so that small messages weigh as much as large ones. A piece more has to
take away a good part of what error is left (a switch of protocols does).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import sqrt
from statistics import fmean

import numpy as np

from mpicoll.curves import Curve, Piece
from mpicoll.errors import ArgumentError

_HUBER = 0.1  # relative errors beyond count linearly
_PAYS = 0.002  # of squared relative error, for each piece more
_MOST_PIECES = 8
_FAR = 1 << 20  # bytes
_NOTHING = 2e-8  # seconds
_ALIKE = 0.15
_FEWEST = 3  # points of a piece; the last may have one less, as sizes beyond the caches are few

Point = tuple[float, float]  # bytes, seconds


def line(points: Sequence[Point]) -> tuple[float, float, float]:
    """Constant, slope and squared relative error (Huber's) of the best line; neither is negative."""
    x, y = np.array(points, float).T
    weights = np.ones_like(x)
    constant = slope = 0.0
    for _ in range(12):  # iteratively reweighted least squares
        best = None
        for columns in ([0, 1], [0], [1]):
            matrix = np.stack([np.ones_like(x), x])[columns] / y * np.sqrt(weights)
            solved = np.linalg.lstsq(matrix.T, np.sqrt(weights), rcond=None)[0]
            error = float((((matrix.T @ solved) - np.sqrt(weights)) ** 2).sum())
            if (solved >= 0).all() and (best is None or error < best[0] * (1 - 1e-9)):
                full = np.zeros(2)
                full[columns] = solved
                best = error, full
        if best is None:
            raise ArgumentError(f"no line without negative terms fits {points}")
        constant, slope = best[1]
        off = np.abs((constant + slope * x) / y - 1)
        weights = np.minimum(1.0, _HUBER / np.maximum(off, 1e-12))
    off = np.abs((constant + slope * x) / y - 1)
    loss = np.where(off < _HUBER, off**2, 2 * _HUBER * off - _HUBER**2)
    return float(constant), float(slope), float(loss.sum())


def fit_curve(points: Sequence[Point]) -> Curve:
    """The curve in as few pieces as explain the points; a piece begins at the first of its points.

    From `_FAR` on, where latency is nothing and the caches end, they are `rates`.

    >>> sizes = [2.0**k for k in range(3, 22)]
    >>> switched = [(n, 1e-6 + 1e-9 * n if n < 5000 else 9e-6 + 2e-10 * n) for n in sizes]
    >>> [int(start) for start, *_ in fit_curve(switched).pieces]
    [0, 8192, 1048576]
    """
    points = sorted(points)
    if len(points) < 2:
        raise ArgumentError(f"a curve needs two sizes at least, not {len(points)}")
    near, far = ([p for p in points if (p[0] >= _FAR) is beyond] for beyond in (False, True))
    if len(near) < _FEWEST or not far:
        return Curve(_pieces(points))
    (_, seconds, slope), *more = rates(far).pieces
    return Curve((*_pieces(near), (far[0][0], seconds, slope), *more))


def _pieces(points: Sequence[Point]) -> tuple[Piece, ...]:
    lines: dict[tuple[int, int], tuple[float, float, float]] = {}
    for i in range(len(points)):
        least = _FEWEST - (i == len(points) - _FEWEST + 1)
        for j in range(i + least, len(points) + 1):
            lines[i, j] = line(points[i:j])
    if not lines:
        constant, slope, _ = line(points)
        return ((0.0, constant, slope),)
    # best[j]: least loss of the first j points, and where its pieces begin; one table per number of pieces.
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    chosen: tuple[float, tuple[int, ...]] = (float("inf"), ())
    for _ in range(_MOST_PIECES):
        longer: dict[int, tuple[float, tuple[int, ...]]] = {}
        for (i, j), (_, _, loss) in lines.items():
            if i in best and (j not in longer or best[i][0] + loss < longer[j][0]):
                longer[j] = best[i][0] + loss, (*best[i][1], i)
        best = longer
        end = best.get(len(points))
        if end is not None and end[0] + _PAYS * len(end[1]) < chosen[0]:
            chosen = end[0] + _PAYS * len(end[1]), end[1]
    starts = chosen[1]
    pieces = []
    for begin, end_ in zip(starts, (*starts[1:], len(points)), strict=True):
        constant, slope, _ = lines[begin, end_]
        pieces.append((points[begin][0] if begin else 0.0, constant, slope))
    return tuple(pieces)


def rates(points: Sequence[Point]) -> Curve:
    """The curve of what takes nothing but time per byte: the rate of each point, up to halfway to the next.

    Points of less than 20 ns say nothing; neighbours of nearly one rate are one piece.

    >>> rates([(1.0, 1e-9), (1024.0, 1e-7), (4096.0, 4.02e-7), (16384.0, 6.4e-6)]).pieces
    ((0.0, 0.0, 9.7900390625e-11), (8192.0, 0.0, 3.90625e-10))
    """
    known = [(n, t) for n, t in sorted(points) if t >= _NOTHING] or [max(points)]
    groups: list[list[Point]] = []
    for n, t in known:
        if groups and abs(groups[-1][0][1] / groups[-1][0][0] / (t / n) - 1) < _ALIKE:
            groups[-1].append((n, t))
        else:
            groups.append([(n, t)])
    starts = [0.0, *(sqrt(a[-1][0] * b[0][0]) for a, b in pairwise(groups))]
    slopes = [fmean(t / n for n, t in group) for group in groups]
    return Curve(tuple((start, 0.0, slope) for start, slope in zip(starts, slopes, strict=True)))
