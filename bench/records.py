"""What records of sweeps and campaigns have in common: moments, files replaced in one step, one writer."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

from mpicoll.errors import MpicollError


def moment() -> str:
    """This moment, as records have it."""
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def write_json(path: Path, value: Any) -> None:
    """Replace a file in one step by a value as JSON."""
    replace_file(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def replace_file(path: Path, content: str | bytes) -> None:
    """Replace a file in one step: a reader sees the old or the new one, never half of it.

    Raises `OSError` that names the file; then it is as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(content if isinstance(content, bytes) else content.encode(errors="backslashreplace"))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise OSError(error.errno, error.strerror, str(path)) from None  # of a full disk it names none


def write_named(path: Path, content: str | bytes) -> None:
    """Write a file that the user named: in one step, but for devices and pipes such as `/dev/stdout`.

    Raises `OSError` that names the file.
    """
    if path.is_file() or not path.exists():
        replace_file(path.resolve(), content)
        return
    try:
        with path.open("wb") as file:
            file.write(content if isinstance(content, bytes) else content.encode())
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


class Busy(MpicollError):
    """Another process works here; the message says which."""


class Lock:
    """A file that one process holds, until it lets go or ends. In it stands who that is."""

    def __init__(self, path: Path, who: str) -> None:
        """Raise `Busy` if another holds it: `who` is what it must be, as "another sweep"."""
        self._file = path.open("a+", encoding="utf-8")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:  # some network file systems have no locks: then nobody is kept out
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                self._file.seek(0)
                holder = self._file.read().strip() or "it does not say which"
                self._file.close()
                raise Busy(f"{who} works in {path.parent} ({holder}): wait for it, or end it") from None
            print(
                f"warning: no locks in {path.parent} ({error.strerror}): {who} is not kept out",
                file=sys.stderr,
            )
        with contextlib.suppress(OSError):  # on a full disk it is held without a name
            self._file.truncate(0)
            self._file.write(f"process {os.getpid()} on {socket.gethostname()} since {moment()}\n")
            self._file.flush()

    def release(self) -> None:
        """Let others in."""
        with contextlib.suppress(OSError):  # what a full disk did not take
            self._file.close()
