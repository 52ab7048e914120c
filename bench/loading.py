"""Users' files that register algorithms: run for a verb, recorded by a sweep, and run again by its report.

A report runs a file that was named to the sweep, not to it; and what names it, `run.json`, may have been
written by anybody. So it runs it only if nobody but the caller (or root) can have put it where it lies, and
if it is the same to the byte; says so, and can be told not to (``--no-load``).
"""

from __future__ import annotations

import argparse
import hashlib
import os
import runpy
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mpicoll.algorithms  # noqa: F401  (importing registers them: what a file registers comes after)
from mpicoll.bench.store import StoreError
from mpicoll.errors import ArgumentError, MpicollError
from mpicoll.registry import algorithms

#: A file as `run.json` has it: `file`, `digest` (of the file alone, not of what it imports), `algorithms`.
Facts = dict[str, Any]


def add_load(parser: argparse.ArgumentParser, more: str = "") -> None:
    """Add the flag ``--load``."""
    parser.add_argument(
        "--load",
        action="append",
        default=[],
        metavar="FILE.py",
        help=f"run a file that registers algorithms{more}",
    )


def load(paths: Iterable[str]) -> list[Facts]:
    """Run users' files for the algorithms that they register; what to record of each.

    Raises `ArgumentError` for a file that cannot be read or run.
    """
    loaded = []
    for path in paths:
        before = set(map(str, algorithms()))
        try:
            digest = _digest(Path(path))
        except OSError as error:
            raise ArgumentError(f"cannot read {path}: {error.strerror}") from None
        except ValueError as error:
            raise ArgumentError(f"cannot read {path!r}: {error}") from None
        try:
            runpy.run_path(path)
        except MpicollError as error:
            raise ArgumentError(f"{path}: {error}") from error
        except (Exception, SystemExit) as error:  # a file that ends the program would end it without a word
            raise ArgumentError(f"{path}: {type(error).__name__}: {error}") from error
        new = [name for name in map(str, algorithms()) if name not in before]
        loaded.append({"file": str(Path(path).resolve()), "digest": digest, "algorithms": new})
    return loaded


def digests(loaded: Sequence[Facts]) -> list[str] | None:
    """What two launches that loaded files must have in common; None for none."""
    return [one["digest"] for one in loaded] or None


def _digest(path: Path) -> str:
    """Of a file's bytes; of a folder with a `__main__.py`, which Python runs too, of that."""
    path = path / "__main__.py" if path.is_dir() else path
    return hashlib.blake2b(path.read_bytes(), digest_size=8).hexdigest()


# -- in a report -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Loading:
    """Users' files of some results: what to say about them, and the algorithms that are theirs."""

    words: Sequence[str] = ()
    own: frozenset[str] = frozenset()  # as allreduce/two_way_ring


def for_report(runs: Mapping[str, Mapping[str, Any]], named: Sequence[str], *, again: bool) -> Loading:
    """Run the files that are `named` (``--load``), else, if `again`, those that the sweeps loaded.

    Raises `ArgumentError` for a named file that cannot be run, and `StoreError` if two launches loaded two
    versions of one file: their rows have the same names.
    """
    recorded = _recorded(runs)
    own = {name for one in recorded.values() for name in one["algorithms"]}
    if named:
        loaded = load(named)
        own.update(name for one in loaded for name in one["algorithms"])
        return Loading([_ran(one, "by --load") for one in loaded], frozenset(own))
    words = [_run_again(one) if again else _not_run(one, "by --no-load") for one in recorded.values()]
    return Loading(words, frozenset(own))


def _recorded(runs: Mapping[str, Mapping[str, Any]]) -> dict[str, Facts]:
    """The files that launches loaded, each once, by path."""
    found: dict[str, tuple[Facts, str]] = {}
    for source, run in runs.items():
        for launch in run["launches"]:
            for one in launch.get("loaded") or ():
                first, where = found.setdefault(one["file"], (one, source))
                if first["digest"] != one["digest"]:
                    raise StoreError(
                        f"{source} and {where} loaded two versions of {_shown(one)}, whose algorithms have "
                        "the same names; report them one by one, or compare them with `mpicoll compare`"
                    )
    return {path: one for path, (one, _) in found.items()}


def _run_again(one: Facts) -> str:
    """Run a recorded file if it is what it was; a sentence about it."""
    try:
        if why := _why_not(one):
            return _not_run(one, why)
        load([one["file"]])
    except OSError as error:
        return _not_run(one, error.strerror or "it cannot be read")
    except (MpicollError, ValueError, RuntimeError) as error:  # the latter: no path, and a ring of links
        return _not_run(one, str(error))
    return _ran(one, "as the sweep did; it is unchanged")


def _why_not(one: Facts) -> str | None:
    """Why a recorded file is not run again; None for one that only the caller or root can have put there.

    A path with links is none of those that `load` records: ``/proc/self/cwd`` would be wherever one stands.
    """
    path = Path(one["file"])
    if path.suffix != ".py" or not path.is_absolute() or path != path.resolve():
        return "only a .py file is run again, named by its full path without links"
    file, folder = path.stat(), path.parent.stat()
    if not stat.S_ISREG(file.st_mode):
        return "it is no regular file"
    if file.st_uid not in (os.getuid(), 0):
        return "it belongs to another user"
    for what, mode in (("it", file.st_mode), ("its folder", folder.st_mode)):
        if mode & (stat.S_IWGRP | stat.S_IWOTH):
            return f"others than its owner can write {what}: chmod go-w"
    return None if _digest(path) == one["digest"] else "it has changed since"


def _ran(one: Facts, why: str) -> str:
    return f"Loaded {_shown(one)} ({why}): {', '.join(one['algorithms']) or 'no algorithm'}."


def _not_run(one: Facts, why: str) -> str:
    return (
        f"Not loaded: {_shown(one)} ({why}). There is no model of {', '.join(one['algorithms'])}; "
        "mpicoll report --load FILE.py runs it, or another."
    )


def _shown(one: Facts) -> str:
    """A file's name, as short as it can be from here."""
    path = Path(one["file"])
    shown = str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
    return shown.encode("utf-8", "backslashreplace").decode()  # a name need not be text
