"""Times and rates as people write them: 5us, 25GB/s, 1Gbit/s."""

from __future__ import annotations

import re

from mpicoll.errors import ArgumentError

_TIME = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
_PREFIX = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "ki": 2.0**10, "mi": 2.0**20, "gi": 2.0**30}
_NUMBER = r"(\d+(?:\.\d*)?(?:e[+-]?\d+)?)"


def parse_time(text: str) -> float:
    """A short time in seconds.

    >>> parse_time("4us"), parse_time("0.5 ms"), parse_time("2e-6")
    (4e-06, 0.0005, 2e-06)
    """
    match = re.fullmatch(rf"{_NUMBER}\s*(ns|us|µs|ms|s)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise ArgumentError(f"not a time: {text!r}; write 5us, 300ns, 0.1ms or seconds")
    return float(match[1]) * _TIME[(match[2] or "s").lower()]


def parse_rate(text: str) -> float:
    """A rate in bytes per second; prefixes are decimal (GB/s = 1e9 B/s) unless binary (GiB/s).

    >>> parse_rate("25GB/s"), parse_rate("1Gbit/s"), parse_rate("1 GiB/s")
    (25000000000.0, 125000000.0, 1073741824.0)
    """
    match = re.fullmatch(rf"{_NUMBER}\s*([kmgt]i?|)(b|bit)/s", text.strip(), re.IGNORECASE)
    if match is None or float(match[1]) == 0:
        raise ArgumentError(f"not a rate: {text!r}; write 25GB/s, 100Gbit/s or 10GiB/s")
    return float(match[1]) * _PREFIX[match[2].lower()] / (8 if match[3].lower() == "bit" else 1)
