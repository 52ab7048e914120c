"""The record on disk: `samples.csv` (tidy, append-only) and `run.json` (what the rows do not say).

A case may be measured in several *passes*, each with buffers of its own. All rows of a pass are written
in one go and synchronised, and each says how many belong together (`case_rows`), so that the file itself
tells whether its last pass is whole. One cut off by a kill or a full disk is moved aside, never counted.
Paths carry no data: all that is known is in columns.

Schema history
1: first version.
2: new columns `pass`, `batch`, `late`, `start_skew`, `stopped_by`, `placement` (see `ADDED`). Schema 1
   is read, and not continued.
"""

from __future__ import annotations

import contextlib
import csv
import errno
import io
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mpicoll.bench.records import Lock, write_json
from mpicoll.errors import ArgumentError, MpicollError

SCHEMA = 2

COLUMNS = (
    "launch", "case", "pass", "case_rows", "order", "collective", "implementation", "requested", "algorithm",
    "params", "engine", "channels", "depth", "rounds", "buffer", "dtype", "op", "root", "ranks", "nodes",
    "ppn", "placement", "oversubscribed", "thread_level", "count", "msg_bytes", "total_bytes", "cache",
    "primed", "sync", "batch", "iteration", "warmup", "late", "seconds", "seconds_min", "skew",
    "slowest_rank", "start_skew", "build_seconds", "first_seconds", "checked", "stopped_by", "status",
    "reason",
)  # fmt: skip
#: Columns that schema 1 does not have, and what its rows would say there.
ADDED: dict[str, Any] = {
    "pass": 0,
    "batch": 1,
    "late": False,
    "start_skew": None,
    "stopped_by": None,
    "placement": None,
}
_HEADERS = {
    (",".join(names) + "\n").encode(): names
    for names in (COLUMNS, tuple(name for name in COLUMNS if name not in ADDED))
}

Row = Mapping[str, Any]


class StoreError(MpicollError):
    """A result directory cannot be used or written; the message says why and what to do."""


def format_value(value: Any) -> str:
    r"""One CSV field: nothing for missing, 0/1 for flags, nanoseconds for seconds, a single line of text.

    >>> [format_value(v) for v in (None, True, 1.25e-6, 3, "a\nb")]
    ['', '1', '0.00000125', '3', 'a b']
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, float):
        return f"{value:.9f}".rstrip("0").rstrip(".") or "0"
    return " ".join(str(value).split())


def encode(rows: Sequence[Row]) -> bytes:
    """Rows of one case as CSV lines, completed by their number."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in rows:
        unknown = row.keys() - set(COLUMNS)
        if unknown:
            raise KeyError(f"no such columns: {', '.join(sorted(unknown))}")
        values = {**row, "case_rows": len(rows)}
        writer.writerow([format_value(values.get(name)) for name in COLUMNS])
    return text.getvalue().encode()


class Whole(NamedTuple):
    """The part of a samples file that holds whole passes."""

    length: int  # bytes
    passes: list[tuple[str, str]]  # number of the case and of the pass, in the order of the file
    wrong: int  # rows of wrong results


def whole_part(
    content: bytes, where: str = "samples.csv", each: Callable[[Sequence[Row]], Any] = lambda rows: None
) -> Whole:
    """How much of a samples file is whole passes of cases; `each` is called with the rows of every one.

    Raises `StoreError` for a file that another schema or program wrote, or that is broken before its end.
    """
    first, newline, _ = content.partition(b"\n")
    names = _HEADERS.get(first + newline)
    if names is None:
        if any(header.startswith(content) for header in _HEADERS):  # cut off while it was begun
            return Whole(0, [], 0)
        raise StoreError(f"{where} has other columns than this version of mpicoll writes (schema {SCHEMA})")
    length = position = len(first) + 1
    passes: list[tuple[str, str]] = []
    begun: list[dict[str, str]] = []
    wrong = 0
    for number, line in enumerate(content[position:].splitlines(keepends=True), start=2):
        position += len(line)
        try:
            fields = next(csv.reader([line.decode(errors="replace")]), [])
        except csv.Error as error:
            raise StoreError(f"{where} line {number} is no row of samples: {error}") from None
        if not line.endswith(b"\n") or len(fields) != len(names):
            if position < len(content):
                raise StoreError(f"{where} line {number} has {len(fields)} fields instead of {len(names)}")
            break
        begun.append(dict(zip(names, fields, strict=True)))
        if _block(begun[-1]) != _block(begun[0]):
            raise StoreError(f"{where} line {number} begins a case before the one above it is whole")
        if not begun[0]["case_rows"].isdecimal():
            raise StoreError(f"{where} line {number} is no row of samples")
        if len(begun) == int(begun[0]["case_rows"]):
            length = position
            passes.append(_block(begun[0])[1:])
            wrong += sum(row["status"] == "wrong" for row in begun)
            each(begun)
            begun = []
    return Whole(length, passes, wrong)


def _block(row: Row) -> tuple[str, str, str]:
    """Launch, case and pass: what the rows of one write have in common."""
    return str(row["launch"]), str(row["case"]), str(row.get("pass", 0))


class Store:
    """A result directory, opened for writing by one process.

    `resume` continues what is there, and begins where nothing is: a job script need not know which. None
    is for a verb that cannot.
    `each` is called with the rows of every pass: of those found in the file, and of those written.
    """

    def __init__(
        self,
        directory: Path,
        *,
        resume: bool | None = False,
        each: Callable[[Sequence[Row]], Any] = lambda rows: None,
    ):
        self.directory, self._each = directory, each
        self.path = directory / "samples.csv"
        self.run: dict[str, Any] = {"schema": SCHEMA, "launches": [], "plans": {}}
        self.set_aside: Path | None = None
        with explained(directory):
            directory.mkdir(parents=True, exist_ok=True)
            self._lock = Lock(directory / ".lock", "another sweep")
        try:
            self._open(resume)
        except BaseException:
            self._lock.release()
            raise

    def _open(self, resume: bool | None) -> None:
        directory = self.directory
        with explained(directory):
            begun = (directory / "run.json").exists()
            if resume and begun:
                self.run = read_run(directory)
                if self.run["schema"] != SCHEMA:
                    raise StoreError(
                        f"{directory} was written by an older mpicoll (schema {self.run['schema']}), "
                        "which this one reads but does not continue; choose another -o"
                    )
            elif begun or (self.path.exists() and not resume):
                advice = "" if resume is None else "continue it with --resume, or "
                raise StoreError(f"{directory} already holds a result; {advice}choose another -o")
            self._file = self.path.open("ab+", buffering=0)
            try:
                found = self._recover()
                if found and not begun:
                    raise StoreError(f"{directory} has samples but no run.json to say how they were measured")
            except BaseException:
                self._file.close()
                raise

    def _recover(self) -> list[tuple[str, str]]:
        self._file.seek(0)
        content = self._file.read()
        self._length, passes, self.wrong = whole_part(content, str(self.path), self._each)
        if self._length < len(content):
            number = len(list(self.directory.glob("samples.torn-*.csv"))) + 1
            self.set_aside = self.directory / f"samples.torn-{number}.csv"
            self.set_aside.write_bytes(content[self._length :])
            self._file.truncate(self._length)
        if not self._length:
            self._append((",".join(COLUMNS) + "\n").encode())
        twice = [found for found, times in Counter(passes).items() if times > 1]
        if twice:
            raise StoreError(f"{self.path} holds case {twice[0][0]}, pass {twice[0][1]} more than once")
        return passes

    def _append(self, block: bytes) -> None:
        try:
            view = memoryview(block)
            while view:
                view = view[self._file.write(view) :]
            os.fsync(self._file.fileno())
        except OSError:
            with contextlib.suppress(OSError):
                self._file.truncate(self._length)  # a case is in the file whole, or not at all
            raise
        self._length += len(block)

    def write_case(self, rows: Sequence[Row]) -> None:
        """Append a finished pass of a case.

        Raises `StoreError` if the disk refuses it; the file is then as before.
        """
        with explained(self.directory):
            self._append(encode(rows))
        self.wrong += sum(row["status"] == "wrong" for row in rows)
        self._each(rows)

    def write_run(self) -> None:
        """Replace `run.json` in one step: a reader sees the old or the new one, never half of it."""
        with explained(self.directory):
            write_json(self.directory / "run.json", self.run)

    def close(self) -> None:
        """Close the file and let others write."""
        self._file.close()
        self._lock.release()


@contextlib.contextmanager
def explained(directory: Path) -> Any:
    """Within: an `OSError` becomes a `StoreError` that says what could not be written, and what to do."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        advice = (
            "free some space, then continue with --resume"
            if error.errno in (errno.ENOSPC, errno.EDQUOT)
            else ""
        )
        where = error.filename if isinstance(error.filename, str) else directory
        raise StoreError(f"cannot write to {where}: {reason}" + (f"; {advice}" if advice else "")) from error


def read_run(directory: Path) -> dict[str, Any]:
    """The `run.json` of a result. Raises `StoreError` if it is missing or of another schema."""
    path = directory / "run.json"
    try:
        run = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StoreError(f"{directory} holds no result (no run.json)") from None
    except (OSError, ValueError) as error:
        raise StoreError(f"cannot read {path}: {error}") from None
    if not isinstance(run, dict):
        raise StoreError(f"{path} is no record of a result")
    if run.get("schema") not in (1, SCHEMA):
        raise StoreError(
            f"{path} has schema {run.get('schema')}; this version of mpicoll reads 1 and {SCHEMA}"
        )
    return run


def require_same(old: Mapping[str, Any], new: Mapping[str, Any], directory: Path) -> None:
    """Refuse to continue a result under other conditions.

    Raises `ArgumentError` with each difference, what was there and what is now.
    """
    if differences := list(_differences(old, new)):
        listed = "\n  ".join(differences)
        raise ArgumentError(
            f"{directory} was measured under other conditions (there → now); choose another -o:\n  {listed}"
        )


def _differences(old: Mapping[str, Any], new: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """Of tables within tables only what differs, under its whole name."""
    for name in dict.fromkeys([*old, *new]):
        before, now = old.get(name), new.get(name)
        if isinstance(before, Mapping) and isinstance(now, Mapping):
            yield from _differences(before, now, f"{above}{name}.")
        elif before != now:
            yield f"{above}{name}: {before!r} → {now!r}"
