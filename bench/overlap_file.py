"""`overlap.csv`: one row for each step of each mode, appended in blocks of whole iterations.

An iteration is whole when all modes are in it (`run.json` has how many there are): the file itself tells what
a launch that was killed has finished. What was cut off is moved aside, never counted.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mpicoll.bench.store import StoreError, explained, format_value

FILE = "overlap.csv"
COLUMNS = (
    "launch", "iteration", "order", "warmup", "mode", "bucket_bytes", "buckets", "gradient_bytes", "seconds",
    "seconds_min", "slowest_rank", "cpu_seconds", "loss", "flops", "layers", "width", "batch", "dtype",
    "ranks", "nodes", "ppn", "oversubscribed", "thread_level", "progress", "engine", "algorithm", "status",
    "reason", "buffer",
)  # fmt: skip
ADDED = {"buffer": "host"}  # what older files, without the column, would say there
_TEXT = ("mode", "dtype", "thread_level", "progress", "engine", "algorithm", "status", "reason", "buffer")
_FLAGS = ("warmup", "oversubscribed")
_REAL = ("seconds", "seconds_min", "cpu_seconds", "loss")
_HEADERS = {
    (",".join(names) + "\n").encode(): names
    for names in (COLUMNS, tuple(name for name in COLUMNS if name not in ADDED))
}

Row = dict[str, Any]


def encode(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Rows as lines of the file."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(
        [format_value(row[name]) for name in COLUMNS] for row in rows
    )
    return text.getvalue().encode()


def parse(content: bytes, modes: int, where: object) -> tuple[list[Row], int]:
    """The rows of all whole iterations, and how many bytes of the file they take with its first line.

    Raises `StoreError` for a file of another program, and for one that lacks something before its end.
    """
    first, newline, _ = content.partition(b"\n")
    names = _HEADERS.get(first + newline)
    if names is None:
        if any(header.startswith(content) for header in _HEADERS):  # cut off while it was begun
            return [], 0
        raise StoreError(f"{where} has other columns than this version of mpicoll writes")
    rows: list[Row] = []
    begun: list[Row] = []
    length = position = len(first) + 1
    for number, line in enumerate(content[position:].splitlines(keepends=True), start=2):
        position += len(line)
        row = _row(line, names) if line.endswith(b"\n") else None
        if row is None and position < len(content):
            raise StoreError(f"{where} line {number} is no row of a step")
        if row is None:
            break
        if begun and _iteration(row) != _iteration(begun[0]):
            raise StoreError(f"{where} lacks steps of some modes; leave it out, or measure again")
        begun.append(row)
        if len(begun) == modes:
            rows += begun
            begun, length = [], position
    return rows, length


def _iteration(row: Row) -> tuple[int, int]:
    return row["launch"], row["iteration"]


def _row(line: bytes, names: Sequence[str]) -> Row | None:
    """The values of a line, or None if it has none."""
    fields = next(csv.reader([line.decode(errors="replace")]), [])
    if len(fields) != len(names):
        return None
    try:
        return ADDED | {name: _value(name, text) for name, text in zip(names, fields, strict=True)}
    except ValueError:
        return None


def _value(name: str, text: str) -> Any:
    if text == "":
        return None
    if name in _TEXT:
        return text
    return bool(int(text)) if name in _FLAGS else float(text) if name in _REAL else int(text)


def read(directory: Path, modes: int) -> tuple[list[Row], bool]:
    """The rows of all whole iterations, and whether there is more behind them.

    Raises `StoreError` for a file that cannot be read or was written by something else.
    """
    path = directory / FILE
    try:
        content = path.read_bytes()
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from None
    rows, length = parse(content, modes, path)
    return rows, length < len(content)


class RowFile:
    """The file of a result directory, opened for appending by rank 0."""

    def __init__(self, directory: Path, modes: int | None) -> None:
        """Recover what is there; `modes` is None where nothing was recorded yet."""
        self.path = directory / FILE
        self.rows: list[Row] = []
        self.set_aside: Path | None = None
        with explained(directory):
            content = self.path.read_bytes() if self.path.exists() else b""
            length = 0
            if content and modes:
                self.rows, length = parse(content, modes, self.path)
            if length < len(content):
                number = len(list(directory.glob("overlap.torn-*.csv"))) + 1
                self.set_aside = directory / f"overlap.torn-{number}.csv"
                self.set_aside.write_bytes(content[length:])
                os.truncate(self.path, length)
            self._length = length

    def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write rows, and wait for the disk.

        Raises `StoreError` if it refuses them; then the file is as before.
        """
        header = b"" if self._length else (",".join(COLUMNS) + "\n").encode()
        block = header + encode(rows)
        with explained(self.path.parent):
            try:
                with self.path.open("ab") as file:
                    file.write(block)
                    file.flush()
                    os.fsync(file.fileno())
            except OSError:
                if self.path.exists():
                    os.truncate(self.path, self._length)
                raise
        self._length += len(block)
