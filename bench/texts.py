"""Numbers of a summary as texts, the same on a terminal and on a page; a dash where there is none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mpicoll.bench.sizes import format_seconds


def missing(value: Any) -> bool:
    """None or NaN."""
    return value is None or value != value  # NaN differs from itself


def text_of(value: Any) -> str:
    """A text."""
    return value if isinstance(value, str) and value else "-"


def time_of(value: Any) -> str:
    """Seconds."""
    return "-" if missing(value) else format_seconds(value)


def number_of(value: Any) -> str:
    """A ratio."""
    return "-" if missing(value) else f"{value:.2f}"


def interval_of(row: Mapping[Any, Any]) -> str:
    """The interval of a row's ratio."""
    low, high = row.get("ratio_low"), row.get("ratio_high")
    return "-" if missing(low) or missing(high) else f"{low:.2f} to {high:.2f}"
