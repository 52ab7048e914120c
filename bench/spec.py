"""What a sweep measures: one frozen `Spec` from flags and a TOML file with the same names.

A *case* is what is measured (collective, dtype, operation, root, size, state of the caches); *contenders*
(own algorithms on an engine, and MPI's own) are measured against each other within each case.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from mpicoll.bench.settings import flag, one_of, read_toml, whole
from mpicoll.bench.sizes import parse_bytes, parse_seconds, parse_sizes
from mpicoll.errors import ArgumentError

THREAD_LEVELS = ("single", "funneled", "serialized", "multiple")
SYNCS = ("dissemination", "window")
CACHES = ("warm", "cold")
ORDERS = ("shuffled", "sequential")
BUILTINS = ("builtin", "builtin_persistent")
DEVICE_BUILTINS = ("builtin_host", "nccl")  # only for buffers in device memory


@dataclass(frozen=True, slots=True)
class Contender:
    """One implementation in the competition: ``ring:channels=2`` on engine ``native``."""

    name: str
    options: tuple[tuple[str, Any], ...] = ()
    engine: str = ""

    @property
    def builtin(self) -> bool:
        """Whether it is MPI's own."""
        return self.name in BUILTINS + DEVICE_BUILTINS

    @property
    def label(self) -> str:
        """As it is written after ``--algorithms``."""
        return ":".join([self.name, *(f"{key}={value}" for key, value in self.options)])


@dataclass(frozen=True, slots=True)
class Spec:
    """Everything that decides what a sweep measures, with defaults."""

    collective: tuple[str, ...] = ("allreduce",)
    algorithms: tuple[str, ...] = ("all",)
    engine: tuple[str, ...] = ("auto",)
    dtype: tuple[str, ...] = ("float32",)
    op: tuple[str, ...] = ("sum",)
    sizes: tuple[int, ...] = tuple(parse_sizes("4:64M:4"))
    root: int = 0
    buffer: str = "numpy"
    cache: tuple[str, ...] = ("warm",)
    sync: str = "dissemination"
    batch: int = 1
    precision: float = 5.0
    iterations: int = 1000
    warmup: int = 10
    prime_below: int = 256 << 10
    case_time: float = 6.0
    check: bool = True
    stages: bool = False
    time_limit: float | None = None
    order: str = "shuffled"
    seed: int = 1
    thread_level: str = "funneled"

    def identity(self) -> dict[str, Any]:
        """What two launches must have in common to belong to one result; JSON types only."""
        values = json.loads(json.dumps(asdict(self)))
        del values["time_limit"]
        return values

    def contenders(self, collective: str, own: Iterable[str]) -> list[Contender]:
        """The competitors for one collective; `own` names its registered algorithms."""
        found: dict[Contender, None] = {}
        for text in self.algorithms:
            all_of_them = [*own, *BUILTINS, *(DEVICE_BUILTINS if self.buffer == "cupy" else ())]
            names = all_of_them if text == "all" else [text]
            for name in names:
                one = parse_contender(name)
                engines = ("",) if one.builtin else self.engine
                found.update(dict.fromkeys(Contender(one.name, one.options, e) for e in engines))
        return list(found)


def parse_contender(text: str) -> Contender:
    """``name[:key=value…]``; values are integers (with K, M, G), or words.

    >>> parse_contender("ring:channels=2:segment_bytes=64K").label
    'ring:channels=2:segment_bytes=65536'
    """
    name, *settings = text.strip().split(":")
    options = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not (key and equals and value) or key in options:
            raise ArgumentError(f"algorithm {text!r}: write name:key=value:key=value, each key once")
        options[key] = parse_bytes(value) if value[0].isdigit() else value
    if not name or (name in BUILTINS and options):
        raise ArgumentError(f"algorithm {text!r} needs a name, and a builtin takes no parameters")
    return Contender(name, tuple(options.items()))


def _words(value: Any) -> tuple[str, ...]:
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, (list, tuple)) or not all(isinstance(part, str) for part in parts):
        raise ValueError("needs a text or a list of texts")
    words = tuple(dict.fromkeys(str(part).strip() for part in parts if str(part).strip()))
    if not words:
        raise ArgumentError(f"an empty list: {value!r}")
    return words


def _algorithms(value: Any) -> tuple[str, ...]:
    words = _words(value)
    return tuple(dict.fromkeys(word if word == "all" else parse_contender(word).label for word in words))


def _some_of(*choices: str) -> Callable[[Any], tuple[str, ...]]:
    def convert(value: Any) -> tuple[str, ...]:
        words = _words(value)
        if set(words) - set(choices):
            raise ValueError(f"needs {', '.join(choices)}, or several")
        return words

    return convert


def _percent(value: Any) -> float:
    try:
        number = float(value.strip().removesuffix("%") if isinstance(value, str) else value)
    except (TypeError, ValueError):
        number = -1.0
    if isinstance(value, bool) or not 0 <= number <= 100:
        raise ValueError("needs a percentage from 0 (never stop early) to 100")
    return number


_CONVERT: dict[str, Callable[[Any], Any]] = {
    "collective": _words,
    "algorithms": _algorithms,
    "engine": _some_of("auto", "native", "python"),
    "dtype": _words,
    "op": _words,
    "sizes": lambda value: tuple(parse_sizes(value)),
    "root": whole(0),
    "buffer": one_of("numpy", "cupy"),
    "cache": _some_of(*CACHES),
    "sync": one_of(*SYNCS),
    "batch": whole(1, 1_000_000),
    "precision": _percent,
    "iterations": whole(1, 1_000_000_000),
    "warmup": whole(0, 1_000_000_000),
    "prime_below": parse_bytes,
    "case_time": parse_seconds,
    "check": flag,
    "stages": flag,
    "time_limit": parse_seconds,
    "order": one_of(*ORDERS),
    "seed": whole(0),
    "thread_level": one_of(*THREAD_LEVELS),
}


def make_spec(flags: Mapping[str, Any], path: str | Path | None = None) -> Spec:
    """The spec of a TOML file, overridden by `flags` (None: not given).

    Raises `ArgumentError` for a file that cannot be read, an unknown key, or a bad value.
    """
    values = {} if path is None else read_toml(Path(path))
    values.update({key: value for key, value in flags.items() if value is not None})
    known = [f.name for f in fields(Spec)]
    unknown = sorted(values.keys() - set(known))
    if unknown:
        raise ArgumentError(
            f"unknown setting {', '.join(unknown)} in {path or 'flags'}; known: {', '.join(known)}"
        )
    converted = {}
    for key, value in values.items():
        try:
            converted[key] = _CONVERT[key](value)
        except (ValueError, TypeError) as error:
            raise ArgumentError(f"{key} = {value!r}: {error}") from None
    spec = Spec(**converted)
    if spec.buffer == "cupy" and ("cold" in spec.cache or "native" in spec.engine):
        raise ArgumentError("buffer: device buffers are measured warm, and on the python engine")
    if spec.batch > 1 and "cold" in spec.cache:
        raise ArgumentError("batch: only the first call of a batch would find cold buffers; use --batch 1")
    return spec
