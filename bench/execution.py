"""Start the launches of a campaign one after the other, see each to its end, and keep the record.

The record of a launch is ``launches/<id>/launch.json``, written by the process that starts it alone;
``campaign.json`` is what they say together, replaced in one step after each launch. Where several jobs of a
batch system work on one campaign, each has launches of its own, so that no file has two writers that could
lose each other's news for good: whoever writes last has read all.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from mpicoll.bench import machine
from mpicoll.bench.campaign import Launch
from mpicoll.bench.records import Lock, moment, write_json
from mpicoll.errors import MpicollError

SCHEMA = 1
TAIL = 20  # lines of a launch's output that its record keeps
GRACE = 15.0  # seconds from asking a launch to end to killing it;
IMPATIENT = 2.0  # when a person has asked for that twice
_LOOK = 0.05  # seconds between looks at a running launch

#: States of a launch. Those after `running` are final; all but `complete` are tried again with --resume.
STATES = ("planned", "running", "complete", "failed", "timed out", "stopped")


def read_json(path: Path) -> dict[str, Any] | None:
    """A record, or None if there is no such file. Raises `MpicollError` if it is broken."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise MpicollError(f"cannot read {path}: {error}") from None
    if not isinstance(found, dict):
        raise MpicollError(f"{path} is no record of a campaign")
    return found


@contextlib.contextmanager
def held(directory: Path, repeats: Iterable[int]) -> Iterator[None]:
    """Within: launches of these repeats are started by this process alone. Raises `Busy` if they are not.

    Each repeat has a lock of its own, since a job of a batch system takes one.
    """
    with contextlib.ExitStack() as stack:
        directory.mkdir(parents=True, exist_ok=True)
        for repeat in sorted(repeats):
            path = directory / f".repeat-{repeat}.lock"
            stack.callback(Lock(path, "another `mpicoll launch`").release)
        yield


class Record:
    """The record of a campaign in its directory."""

    def __init__(self, directory: Path, head: Mapping[str, Any], commands: Mapping[Launch, Sequence[str]]):
        self.directory, self.head, self.commands = directory, dict(head), commands

    def folder(self, launch: Launch) -> Path:
        """Where the result of a launch lies."""
        return self.directory / "launches" / launch.id

    def of(self, launch: Launch) -> dict[str, Any]:
        """What is recorded of a launch."""
        found = read_json(self.folder(launch) / "launch.json")
        command = shlex.join(self.commands[launch])
        return {
            **describe(launch), "command": command, "state": "planned", "attempts": [], **(found or {}),
        }  # fmt: skip

    def crowded(self, launch: Launch) -> bool:
        """Whether ranks of the launch shared cores, as its own record says."""
        run = read_json(self.folder(launch) / "run.json") or {}
        return any(one.get("oversubscribed") for one in run.get("launches", [])[-1:])

    def write(self, launch: Launch, record: Mapping[str, Any]) -> None:
        """Record a launch, then the campaign."""
        write_json(self.folder(launch) / "launch.json", record)
        self.write_campaign()

    def write_campaign(self) -> None:
        """Write ``campaign.json`` from all that is recorded of its launches."""
        records = [self.of(launch) for launch in self.commands]
        write_json(self.directory / "campaign.json", {"schema": SCHEMA, **self.head, "launches": records})


def describe(launch: Launch) -> dict[str, Any]:
    """The factors of a launch as JSON."""
    names = ("id", "repeat", "ranks", "nodes", "ppn", "placement", "environment", "options")
    return {name: getattr(launch, name) for name in names}


class Stopping:
    """SIGINT, SIGTERM and SIGUSR1 are passed on to the launch that runs; after it, no other begins.

    A second SIGINT or SIGTERM sets `impatient`: the launch is to be killed.
    """

    def __init__(self) -> None:
        self.received = 0
        self.impatient = False
        self.child: subprocess.Popen[bytes] | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Stopping:
        """Begin to catch."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        """Stop catching."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.impatient |= self.received != 0 and number != signal.SIGUSR1
        self.received = self.received or number
        if self.child is not None and self.child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.child.pid, number)


def _die_with_parent() -> None:
    """In the child, before it becomes the launcher: TERM when the process that started it is gone (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def descendants(pid: int) -> list[int]:
    """All living children of a process and theirs: ranks may be in sessions of their own."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    found = [pid]
    for parent in found:
        found.extend(children.get(parent, []))
    return found[1:]


def kill(child: subprocess.Popen[bytes], grace: float) -> None:
    """End a launch and all that it started. It is asked first, so that it ends its ranks on other nodes."""
    family = descendants(child.pid)
    child.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + grace
    while child.poll() is None and time.monotonic() < deadline:
        time.sleep(_LOOK)
    for pid in [*family, *(descendants(child.pid) if child.poll() is None else [])]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if child.poll() is None:
        child.kill()
    child.wait()


def execute(record: Record, launch: Launch, timeout: float, stopping: Stopping) -> dict[str, Any]:
    """Run one launch to its end, however that comes, and record it; its record."""
    now, argv = record.of(launch), record.commands[launch]
    attempt: dict[str, Any] = {
        "command": shlex.join(argv), "directory": str(Path.cwd()), "host": socket.gethostname(),
        "environment": machine.environment(), "slurm": machine.slurm(), "started": moment(), "ended": None,
        "state": "running", "exit_status": None, "reason": None, "seconds": None, "output_tail": None,
    }  # fmt: skip
    now["attempts"].append(attempt)
    now.update(state="running", command=attempt["command"])
    record.write(launch, now)
    output = record.folder(launch) / "output.log"
    begun = time.monotonic()
    with output.open("ab") as file:
        start = file.tell()
        status, late = _run(argv, file, timeout, stopping)
    tail = _tail(output, start)
    state, reason = judge(status, late, timeout, stopping.received)
    if state == "complete":
        reason = not_as_asked(record.folder(launch), launch)
        state = "failed" if reason else state
    attempt.update(
        ended=moment(), seconds=round(time.monotonic() - begun, 3), exit_status=status, state=state,
        reason=reason, output_tail=tail,
    )  # fmt: skip
    now["state"] = state
    record.write(launch, now)
    return now


def _run(argv: Sequence[str], file: Any, timeout: float, stopping: Stopping) -> tuple[int | None, bool]:
    """Exit status (None: could not be started), and whether the launch was ended for being late."""
    try:
        child = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
            preexec_fn=_die_with_parent,
        )  # fmt: skip
    except OSError as error:
        file.write(f"cannot start {argv[0]}: {error.strerror}\n".encode())
        return None, False
    stopping.child = child
    try:
        if stopping.received:  # between the last look and the start
            child.send_signal(stopping.received)
        deadline = time.monotonic() + timeout
        while child.poll() is None and time.monotonic() < deadline and not stopping.impatient:
            time.sleep(_LOOK)
        return child.poll(), child.returncode is None and not stopping.impatient
    finally:
        if child.poll() is None:  # late, unwanted, or an exception of our own: leave no job behind
            kill(child, IMPATIENT if stopping.impatient else GRACE)
        stopping.child = None


def judge(status: int | None, late: bool, timeout: float, received: int) -> tuple[str, str | None]:
    """State of a launch, and why, from how it ended."""
    if late:
        return "timed out", f"no end after {timeout:g} s; killed"
    if status == 0:
        return "complete", None
    if received:
        return "stopped", f"stopped by {signal.Signals(received).name}"
    if status is None:
        return "failed", "the launcher could not be started"
    if status == 1:
        return "failed", "exit status 1: wrong results, cases left, or a dead rank; see its output"
    if status - 128 in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        return "stopped", f"stopped by {signal.Signals(status - 128).name}"
    if status < 0:
        return "failed", f"the launcher was killed by {signal.Signals(-status).name}"
    return "failed", f"exit status {status}"


def not_as_asked(folder: Path, launch: Launch) -> str | None:
    """Whether a finished launch had the ranks and the placement it was asked to have; if not, why not."""
    run = read_json(folder / "run.json")
    if run is None or not run.get("launches"):
        return "it ended well but left no run.json"
    if run["launches"][-1]["status"] != "complete":  # srun was seen to say 0 of a step that never began
        return f"it ended well, but its record says: {run['launches'][-1]['status']}"
    for last in run["launches"]:
        if last["ranks"] != launch.ranks:
            return f"{launch.ranks} ranks were asked for, but there were {last['ranks']}"
        if last["nodes"] != launch.nodes:
            return f"{launch.nodes} nodes were asked for, but there were {last['nodes']}"
        places = last.get("placement", [])
        nodes = list(dict.fromkeys(place["node"] for place in places))
        for place in places:
            if nodes.index(place["node"]) != launch.node_of(place["rank"]):
                where = f"rank {place['rank']} was on {place['host']}"
                return f"placement {launch.placement} was asked for, but {where}"
    return None


def _tail(path: Path, start: int) -> str:
    """The last lines that a launch wrote into its log."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(start, size - 200 * TAIL))
        lines = file.read().decode(errors="replace").splitlines()
    return "\n".join(lines[-TAIL:])


def count_states(records: Sequence[Mapping[str, Any]]) -> str:
    """How many launches are in which state, in words."""
    counts = Counter(record["state"] for record in records)
    return ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])


def python_facts() -> dict[str, Any]:
    """What decides whether launches of this machine, and with these libraries, belong together."""
    facts, soft = machine.describe_machine(), machine.software()
    argv = [sys.executable, "-m", "mpi4py", "--mpi-lib-version"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
        library = re.sub(r"https?://\S+", "", done.stdout).strip("\0 \n") if done.returncode == 0 else None
    except (OSError, subprocess.TimeoutExpired):
        library = None
    return {
        **{key: facts[key] for key in ("cpu_model", "architecture", "logical_cpus", "physical_cores")},
        **{key: soft[key] for key in ("python", "mpicoll", "mpi4py", "numpy")},
        "commit": (soft["git"] or {}).get("commit"),
        "mpi": library,
    }
