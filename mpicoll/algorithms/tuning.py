"""Defaults of parameters: optima of the α-β model on a nominal machine.

The nominal machine has α = 2 µs and β = 0.1 ns/B (10 GB/s), so that starting a message costs as much
as 20 000 bytes. That is no claim about any machine: `mpicoll tune` measures, these are where to start.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt

ALPHA_SECONDS = 2e-6
BETA_SECONDS_PER_BYTE = 1e-10
#: α/β: the bytes that could be sent in the time that one message takes to start.
BYTES_PER_START = round(ALPHA_SECONDS / BETA_SECONDS_PER_BYTE)
MOST_SEGMENTS = 1024


def pipeline(hops: Callable[[int], int], share: int = 1) -> Callable[[int, int], int]:
    """The tuner for segments of a pipeline of ``hops(P) + S`` rounds of nβ/S·`share` each.

    T(S) = (hops + S)(α + share·nβ/S) is least at S* = √(hops·share·nβ/α).

    >>> pipeline(lambda size: size - 2)(6, 2_000_000)
    20
    """

    def segments(size: int, nbytes: int) -> int:
        best = isqrt(max(0, hops(size)) * share * nbytes // BYTES_PER_START)
        return max(1, min(best, MOST_SEGMENTS))

    return segments


def radix(size: int, nbytes: int) -> int:
    """4 while starting messages costs more than sending them, else 2.

    Several messages of a round start together, but go through one port one after the other:
    T = log_k P·(α + (k−1)nβ).

    >>> radix(16, 8), radix(16, 1 << 20)
    (4, 2)
    """
    return 4 if nbytes < BYTES_PER_START else 2
