"""Sizes and durations as people type and read them: binary units for bytes, seconds for time."""

from __future__ import annotations

import re
from collections.abc import Iterable

from mpicoll.errors import ArgumentError

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"(\d+)\s*([KMGT]?)(?:I?B)?", re.IGNORECASE)
_DURATION = re.compile(r"(\d+(?:\.\d*)?)\s*(ms|s|m|h)?", re.IGNORECASE)
_SECONDS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_MOST_SECONDS = 100 * 365 * 24 * 3600.0
_MOST_SIZES = 10_000
_MOST_BYTES = (1 << 63) - 1  # that an address can tell apart


def parse_bytes(text: str | int) -> int:
    """A number of bytes; K, M, G and T are powers of 1024.

    >>> parse_bytes("64K"), parse_bytes("1MiB"), parse_bytes(7)
    (65536, 1048576, 7)
    """
    match = _SIZE.fullmatch(str(text).strip())
    if match is None or isinstance(text, bool):
        raise ArgumentError(f"not a size: {text!r}; write bytes such as 4, 64K, 1MiB or 2G")
    # Python itself refuses to read numbers of some thousand digits.
    nbytes = int(match[1]) * _UNITS[match[2].upper()] if len(match[1]) < 99 else _MOST_BYTES + 1
    if nbytes > _MOST_BYTES:
        raise ArgumentError(f"no memory holds so much: {str(text)[:60]!r}; a size is less than 8 EiB")
    return nbytes


def format_bytes(nbytes: int) -> str:
    """The shortest exact name of a size, else three digits of it; four from 1000 to 1023 of a unit.

    >>> [format_bytes(n) for n in (4, 65536, 1 << 26, 1000, 1_000_000)]
    ['4 B', '64 KiB', '64 MiB', '1000 B', '977 KiB']
    >>> [format_bytes(n) for n in (1025, 10239, 10241, 1_040_000, 1_048_577, 3_600_000)]
    ['1025 B', '10239 B', '10 KiB', '1016 KiB', '1 MiB', '3.43 MiB']
    >>> [format_bytes((n << 20) + 1) for n in (999, 1000, 1023, 1025, 10239)]
    ['999 MiB', '1000 MiB', '1023 MiB', '1 GiB', '10 GiB']
    """
    for unit in ("T", "G", "M", "K"):
        whole, rest = divmod(nbytes, _UNITS[unit])
        if whole and not rest:
            return f"{whole} {unit}iB"
    if nbytes < 10 << 10:
        return f"{nbytes} B"
    unit = next(unit for unit in ("T", "G", "M", "K") if nbytes >= _UNITS[unit])
    value = nbytes / _UNITS[unit]
    return f"{value:.0f} {unit}iB" if value >= 999.5 else f"{value:.3g} {unit}iB"


def parse_sizes(text: str | int | Iterable[str | int]) -> list[int]:
    """Sizes in bytes, increasing and without repeats, from ``min:max[:factor]`` or a comma list.

    A range always holds both of its ends.

    >>> parse_sizes("4:64:4"), parse_sizes("1K,16"), parse_sizes([8, "1K"]), parse_sizes("4:50")
    ([4, 16, 64], [16, 1024], [8, 1024], [4, 8, 16, 32, 50])
    """
    if isinstance(text, int):
        parts: list[str | int] = [text]
    elif isinstance(text, str):
        parts = [part for part in text.split(",") if part.strip()]
    else:
        parts = list(text)
    sizes: set[int] = set()
    for part in parts:
        sizes.update(_range(part) if isinstance(part, str) and ":" in part else [parse_bytes(part)])
    if not sizes:
        raise ArgumentError(
            f"no size in {text!r}; write min:max:factor such as 4:64M:2, or a list such as 4,1K,1M"
        )
    return sorted(sizes)


def _range(text: str) -> list[int]:
    low_text, high_text, *rest = text.split(":")
    low, high = parse_bytes(low_text), parse_bytes(high_text)
    try:
        (factor,) = [float(value) for value in rest] or [2.0]
    except ValueError:
        raise ArgumentError(
            f"not a range of sizes: {text!r}; write min:max:factor, such as 4:64M:2"
        ) from None
    if not (0 <= low <= high and factor > 1):
        raise ArgumentError(f"size range {text!r} needs min <= max and a factor above 1")
    sizes: list[int] = []
    value = float(max(low, 1))
    while value < high and len(sizes) < _MOST_SIZES:
        sizes.append(int(value))
        value = max(value * factor, int(value) + 1.0)
    return ([0] if low == 0 else []) + sizes + [high]


def parse_seconds(text: str | float) -> float:
    """A duration in seconds; ``ms``, ``s``, ``m`` and ``h`` are understood.

    >>> parse_seconds("90"), parse_seconds("1.5m"), parse_seconds(0.25)
    (90.0, 90.0, 0.25)
    """
    match = _DURATION.fullmatch(str(text).strip())
    if match is None or isinstance(text, bool):
        raise ArgumentError(f"not a duration: {text!r}; write seconds, or 250ms, 10m, 2h")
    seconds = float(match[1]) * _SECONDS[(match[2] or "s").lower()]
    if not 0 < seconds < _MOST_SECONDS:
        raise ArgumentError(f"{str(text)[:60]!r}: a duration is more than 0 seconds, and less than a century")
    return seconds


def format_seconds(seconds: float) -> str:
    """A duration with three digits in the unit that suits it.

    >>> [format_seconds(s) for s in (1.234e-6, 0.0123, 2.0, 400, 9000)]
    ['1.23 µs', '12.3 ms', '2 s', '6.67 min', '2.5 h']
    """
    for scale, unit in ((3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= scale * (2 if unit in ("h", "min") else 1):
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"
