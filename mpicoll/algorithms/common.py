"""What registrations share: numbers of blocks, and restrictions."""

from __future__ import annotations

from collections.abc import Callable

from ..registry import Params


def one(size: int, params: Params) -> int:
    """The vector is one block."""
    return 1


def one_per_rank(size: int, params: Params) -> int:
    """A block for each rank."""
    return size


def one_per_segment(size: int, params: Params) -> int:
    """A block for each segment of a pipeline."""
    segments: int = params["segments"]
    return segments


def even_size(size: int, params: Params) -> str | None:
    """Restriction of Swing, Bine and neighbour exchange: partners have opposite parity."""
    return "it pairs even with odd ranks, so P must be even" if size % 2 and size > 1 else None


def power_of_two(size: int, params: Params) -> str | None:
    """Restriction of algorithms that need a power of two."""
    return "P must be a power of two" if size & (size - 1) else None


def at_least(**least: int) -> Callable[[int, Params], str | None]:
    """The restriction that integer parameters must not be less than these values."""

    def reason(size: int, params: Params) -> str | None:
        for name, value in least.items():
            if type(params[name]) is not int or params[name] < value:
                return f"{name} must be a whole number of at least {value}, not {params[name]!r}"
        return None

    return reason
