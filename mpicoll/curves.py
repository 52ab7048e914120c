"""Time by size, linear in pieces."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from .errors import ArgumentError

Piece = tuple[float, float, float]  # from this size on [B]: seconds, seconds per byte


@dataclass(frozen=True, slots=True)
class Curve:
    """Time by size, linear in pieces: ``seconds + per_byte·size`` from ``from_bytes`` on."""

    pieces: tuple[Piece, ...]

    def __post_init__(self) -> None:
        if not self.pieces or self.pieces[0][0] != 0 or any(b[0] <= a[0] for a, b in pairwise(self.pieces)):
            raise ArgumentError(f"the pieces of a curve begin at 0 B and go up, not {self.pieces}")
        # As a file says them, so that equal curves have equal texts.
        exact = tuple((float(start), float(seconds), float(slope)) for start, seconds, slope in self.pieces)
        object.__setattr__(self, "pieces", exact)

    def at(self, nbytes: float) -> tuple[float, float]:
        """The constant and the slope that hold for a size."""
        seconds, per_byte = self.pieces[0][1:]
        for start, *piece in self.pieces[1:]:
            if nbytes < start:
                break
            seconds, per_byte = piece
        return seconds, per_byte

    def __call__(self, nbytes: float) -> float:
        """Seconds for a size."""
        seconds, per_byte = self.at(nbytes)
        return seconds + per_byte * nbytes

    def within(self, nbytes: float) -> Curve:
        """For messages that are cut out of `nbytes`: a byte costs no less than one of a message of all.

        What lies outside the caches must come from memory, however small the messages are. Nor does it cost
        more: of pieces without a constant, which are rates, those of larger messages are left out.

        >>> near, far = (0.0, 1e-6, 1e-10), (4096.0, 0.0, 5e-10)
        >>> Curve((near, far)).within(1024) == Curve((near,))
        True
        >>> Curve((near, far)).within(10_000)(512) == 1e-6 + 4e-10 * 512
        True
        """
        if len(self.pieces) == 1 or not nbytes:
            return self
        constant, rate = self.at(nbytes)
        pieces = [
            (start, seconds, max(slope, rate + (constant - seconds) / nbytes) if start <= nbytes else slope)
            for start, seconds, slope in self.pieces
            if start <= nbytes or seconds > 0
        ]
        return Curve(tuple(pieces))

    @property
    def least_latency(self) -> float:
        """No message takes less."""
        return max(0.0, min(self(start) for start, *_ in self.pieces))

    def least_per_byte(self, latency: float, further: float = 0.0, most: float = 1.0) -> float:
        """However data is cut in messages, a byte takes no less, besides `latency` of every round.

        A round has up to `most` messages: the first takes what the curve says, each other one `further`
        seconds and its bytes.

        >>> Curve(((0.0, 1.0, 2.0), (8.0, 9.0, 4.0))).least_per_byte(1.0)
        2.0
        """
        rates = [self.pieces[-1][2]]
        ends = [start for start, *_ in self.pieces[1:]]
        for (start, seconds, slope), stop in zip(self.pieces, [*ends, 0.0], strict=True):
            alone = seconds - latency
            # Per message; it is the less per byte the larger it is, or if negative the more.
            constant = min(alone, (alone + further * (most - 1)) / most)
            rates += [max(0.0, constant / x + slope) for x in (start, stop) if x]
        return min(rates)


def straight(seconds: float, per_byte: float) -> Curve:
    """One line for all sizes.

    >>> straight(5e-6, 4e-11)(1e9)
    0.040005
    """
    return Curve(((0, seconds, per_byte),))


FREE = straight(0.0, 0.0)
