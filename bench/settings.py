"""What campaigns and sites read from TOML: tables, and converters that say what they need instead."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mpicoll.errors import ArgumentError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: Names and texts in their order: variables, flags, directives.
Settings = tuple[tuple[str, str], ...]
ABSENT = "false"  # of a directive: it is not to be there
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

Convert = Callable[[Any], Any]


def read_toml(path: Path) -> dict[str, Any]:
    """The table of a TOML file, with `-` in its keys as `_`. Raises `ArgumentError` if it cannot be read."""
    try:
        with Path(path).open("rb") as file:
            table = tomllib.load(file)
    except OSError as error:
        raise ArgumentError(f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ArgumentError(f"{path} is not TOML: {error}") from None
    return {key.replace("-", "_"): value for key, value in table.items()}


def convert(table: Mapping[str, Any], converters: Mapping[str, Convert], source: object) -> dict[str, Any]:
    """A table with its values converted. Raises `ArgumentError` for an unknown key or a bad value."""
    unknown = sorted(table.keys() - converters.keys())
    if unknown:
        raise ArgumentError(
            f"unknown setting {', '.join(unknown)} in {source}; known: {', '.join(converters)}"
        )
    converted = {}
    for key, value in table.items():
        try:
            converted[key] = converters[key](value)
        except (ValueError, TypeError) as error:
            raise ArgumentError(f"{source}: {key} = {value!r}: {error}") from None
    return converted


def _without_nul(value: str) -> str:
    if "\0" in value:
        raise ValueError("no program can be given a text with a NUL in it")
    return value


def text(value: Any) -> str:
    """A text that says something, in one line: it becomes a word of a command, or a line of a script."""
    if not isinstance(value, str) or not value or "\n" in value:
        raise ValueError("needs a text of one line")
    return _without_nul(value)


def texts(value: Any) -> tuple[str, ...]:
    """A list of texts."""
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise ValueError("needs a list of texts")
    return tuple(map(_without_nul, value))


def flag(value: Any) -> bool:
    """Yes or no."""
    if not isinstance(value, bool):
        raise ValueError("needs true or false")
    return value


def whole(least: int, most: int = (1 << 63) - 1) -> Convert:
    """A whole number, not below `least` and not above `most`: by default what C has a type for."""

    def converted(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"needs a whole number from {least} on")
        if value > most:
            raise ValueError(f"needs a whole number from {least} to {most}")
        return value

    return converted


def numbers(value: Any) -> tuple[int, ...]:
    """One whole number from 1 on, or a list of them; none twice."""
    found = tuple(dict.fromkeys(map(whole(1), value if isinstance(value, list) else [value])))
    if not found:
        raise ValueError("is empty")
    return found


def some_of(*words: str) -> Convert:
    """One of these words, or a list of them; none twice."""

    def converted(value: Any) -> tuple[str, ...]:
        given = value if isinstance(value, list) else [value]
        if not given or any(one not in words for one in given):
            raise ValueError(f"needs some of {', '.join(words)}")
        return tuple(dict.fromkeys(given))

    return converted


def one_of(*words: str) -> Convert:
    """One of these words."""

    def converted(value: Any) -> str:
        if value not in words:
            raise ValueError(f"needs one of {', '.join(words)}")
        return str(value)

    return converted


def _table(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("needs a table")
    return value


def variables(value: Any) -> Settings:
    """A table of environment variables."""
    if any(isinstance(one, bool) or not isinstance(one, (str, int, float)) for one in _table(value).values()):
        raise ValueError("needs texts or numbers")
    for name, one in value.items():
        if not _VARIABLE.fullmatch(name):
            raise ValueError(f"{name!r} is no name of a variable: letters, digits and _, and no digit first")
        _without_nul(str(one))
    return tuple((key, str(one)) for key, one in value.items())


def directives(value: Any) -> Settings:
    """A table of flags of sbatch: `true` is one without a value, `false` takes a default one away."""
    if any(not isinstance(one, (str, int)) for one in _table(value).values()):
        raise ValueError("needs texts, numbers, true or false")
    if any("\n" in f"{name}{one}" for name, one in value.items()):
        raise ValueError("needs texts of one line")
    words = {True: "", False: ABSENT}
    return tuple((key, words[one] if isinstance(one, bool) else str(one)) for key, one in value.items())


def flags(value: Any) -> Settings:
    """A table of long flags and their values, as they would be typed."""

    def typed(one: Any) -> str:
        if isinstance(one, bool):
            return str(one).lower()
        if isinstance(one, list):
            return ",".join(map(typed, one))
        if isinstance(one, dict):
            raise ValueError("needs texts, numbers or lists")
        return _without_nul(str(one))

    return tuple((key.replace("-", "_"), typed(one)) for key, one in _table(value).items())


def named(converter: Convert) -> Convert:
    """A table of tables, each read by `converter`."""

    def converted(value: Any) -> dict[str, Any]:
        if not _table(value):
            raise ValueError("is empty")
        return {name: converter(one) for name, one in value.items()}

    return converted
