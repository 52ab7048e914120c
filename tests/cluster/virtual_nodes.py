"""The nodes of a virtual cluster: namespaces, each kept alive by one idle process, its PID 1.

A node has its own network, host name, IPC, mounts and PIDs; files, users and cores are the machine's. When
its PID 1 is killed, the kernel ends everything on it and takes its network away, so the end of a cluster
ends its own processes and no others. This file is also the program that PID 1 runs:

    python virtual_nodes.py DIRECTORY NAME [--private-tmp]

Standard library only; a node must be as light as possible.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

TOOLS = ("unshare", "nsenter", "setpriv", "ip", "tc")
NAMESPACES = ("--net", "--uts", "--ipc", "--mount", "--pid")
# What a machine must allow; said in its own words where it does not.
PROBE = """
mount -t proc proc /proc && mount -t tmpfs tmpfs /dev/shm && ip link set lo up &&
ip link add name port0 type veth peer name port1 && ip link add name bridge0 type bridge &&
tc qdisc add dev port0 root tbf rate 1gbit burst 128kb latency 50ms
"""


class ClusterError(Exception):
    """The cluster cannot do that; the message says why, and what to do."""


def missing() -> str | None:
    """Why this machine cannot have virtual nodes, or None."""
    if sys.platform != "linux":
        return "virtual nodes need Linux"
    if os.geteuid():
        return "virtual nodes need root"
    absent = [tool for tool in TOOLS if shutil.which(tool) is None]
    if absent:
        return f"virtual nodes need {', '.join(absent)}: apt-get install iproute2 util-linux"
    tried = subprocess.run(
        ["unshare", *NAMESPACES, "--fork", "sh", "-c", PROBE], capture_output=True, text=True, check=False
    )
    return f"virtual nodes are not allowed here: {tried.stderr.strip()}" if tried.returncode else None


def wait_for(true: Callable[[], bool], seconds: float, every: float = 0.02) -> bool:
    """Whether `true` came to be within `seconds`; it is tried `every` so many."""
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(every)
    return True


# -- processes ---------------------------------------------------------------------------------------------
# A process is remembered as "PID START", so that a number which the kernel has meanwhile given to somebody
# else is never taken for ours.


def started(pid: str | int) -> str | None:
    """When a process was started, in ticks of the clock, or None if it runs no more."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def remember(pid: str | int, file: Path) -> None:
    """Write down a process."""
    draft = file.with_suffix(".draft")
    draft.write_text(f"{pid} {started(pid)}")
    draft.rename(file)


def living(file: Path) -> int | None:
    """The process written down in a file, if it still runs."""
    try:
        pid, start = file.read_text().split()
    except (OSError, ValueError):
        return None
    return int(pid) if started(pid) == start else None


def end(file: Path) -> bool:
    """Kill the process written down in a file; whether it is gone."""
    pid = living(file)
    if pid is None:
        return True
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return wait_for(lambda: living(file) is None, 10)


# -- a node ------------------------------------------------------------------------------------------------


class Node:
    """One node, known by the files of its cluster's `directory`."""

    def __init__(self, directory: Path, name: str):
        self.directory, self.name = directory, name
        self.tmp = directory / "tmp" / name
        self.file = directory / "nodes" / name
        self.log = directory / "log" / f"{name}.log"
        self.started: subprocess.Popen[bytes] | None = None  # by this process

    def start(self, *, private_tmp: bool) -> None:
        """Begin to start it; `await_start` waits until it is there."""
        self.tmp.mkdir(parents=True, exist_ok=True)
        self.tmp.chmod(0o1777)
        self.file.parent.mkdir(exist_ok=True)
        self.log.parent.mkdir(exist_ok=True)
        self.file.with_suffix(".ready").unlink(missing_ok=True)
        python = [sys.executable, "-ES", __file__, str(self.directory), self.name]
        with self.log.open("w") as log:
            self.started = subprocess.Popen(
                ["unshare", *NAMESPACES, "--fork", *python, *(["--private-tmp"] if private_tmp else [])],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd="/",
            )  # fmt: skip

    def await_start(self) -> None:
        """Wait until it is there."""
        if not wait_for(self.file.with_suffix(".ready").exists, 20):
            raise ClusterError(f"{self.name} does not start: {self.log.read_text() or 'it said nothing'}")

    def end(self) -> bool:
        """Kill everything on it; whether it is gone."""
        gone = end(self.file)
        if gone and self.started:
            self.started.wait()
        return gone

    def pid(self) -> int:
        """Its PID 1, as the machine sees it."""
        pid = living(self.file)
        if pid is None:
            raise ClusterError(f"{self.name} is down")
        return pid

    def enter(self, argv: Sequence[str], *, clean: bool = False) -> list[str]:
        """What becomes `argv` on the node, in the same folder, and is told to end when it is killed.

        TMPDIR is the node's own, for /tmp is shared and PIDs are not unique: the helpers of two Open MPI
        nodes would meet in /tmp/prted.PID. With `clean` nothing else is taken along, as with ssh.
        """
        try:
            where = str(Path.cwd())
        except OSError:
            where = "/"
        keep = ["-i", *(f"{k}={os.environ[k]}" for k in ("HOME", "USER", "LANG", "PATH") if k in os.environ)]
        return [
            *("nsenter", "--target", str(self.pid()), *NAMESPACES),
            *("setpriv", "--pdeathsig", "TERM", "env", *(keep if clean else []), f"TMPDIR={self.tmp}"),
            *("sh", "-c", 'cd "$1" 2>/dev/null || cd /; shift; exec "$@"', "sh", where, *argv),
        ]

    def run(self, argv: Sequence[str]) -> None:
        """Run a command on it that must succeed, such as a daemon that goes to the background."""
        with self.log.open("a") as log:
            done = subprocess.run(
                self.enter(argv), stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False
            )
        if done.returncode:
            raise ClusterError(f"{argv[0]} does not start on {self.name}: {self.log.read_text()[-2000:]}")

    def processes(self) -> dict[int, str]:
        """All that runs on it: command lines by the machine's PIDs. Empty once it is down."""
        pid = living(self.file)
        mine = pid and Path(f"/proc/{pid}/ns/pid").stat().st_ino
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it ended meanwhile
                if (folder / "ns" / "pid").stat().st_ino == mine:
                    words = (folder / "cmdline").read_bytes().split(b"\0")
                    found[int(folder.name)] = b" ".join(words).decode(errors="replace").strip()
        return found

    def net(self, command: str) -> str:
        """Run a tool of the machine in the node's network; what it prints."""
        argv = ["nsenter", "--target", str(self.pid()), "--net", *command.split()]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ClusterError(f"on {self.name}: {command}: {done.stderr.strip()}")
        return done.stdout


def live(directory: Path, name: str, *, private_tmp: bool) -> None:
    """Be the PID 1 of a node."""
    node = Node(directory, name)
    # The machine's /proc is still mounted here, and in it the number by which the machine knows this process.
    remember(Path("/proc/self/stat").read_text().split()[0], node.file)
    socket.sethostname(name)
    for command in (
        "mount -t proc -o nosuid,nodev,noexec proc /proc",
        "mount -t sysfs -o nosuid,nodev,noexec sysfs /sys",  # /sys/class/net is this node's
        "mount -t tmpfs -o nosuid,nodev,mode=1777 tmpfs /dev/shm",
        f"mount --bind {directory}/hosts /etc/hosts",
        *([f"mount --bind {node.tmp} /tmp"] if private_tmp else []),
        "ip link set lo up",
    ):
        subprocess.run(command.split(), check=True)
    with contextlib.suppress(OSError):  # no IPv6 at all
        Path("/proc/sys/net/ipv6/conf/all/disable_ipv6").write_text("1")
    for table in Path("/proc/sys/net/bridge").glob("bridge-nf-call-*"):
        table.write_text("0")  # a switch has no firewall, least of all one on the nodes' cores
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the orphans that come to a PID 1
    node.file.with_suffix(".ready").touch()
    while True:
        signal.pause()


if __name__ == "__main__":
    live(Path(sys.argv[1]), sys.argv[2], private_tmp="--private-tmp" in sys.argv[3:])
