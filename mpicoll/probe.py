"""Whether MPI may be given device memory: proved by a child job, and remembered.

What a library says of itself is reported and not believed: Open MPI was seen to say no though its UCX can,
and yes though the transport in use cannot; and a library that cannot does not say so when it is given a
device address, it crashes. So ``mpicoll probe`` starts a job of two ranks (`probe_job`) that send each
other device memory, small and large, by blocking and persistent messages, and compare what arrives. If that
job ends well the machine, library and settings that it ran with are written to the user's cache as proved; if
it crashes, hangs or delivers wrong bytes, as not able. Ranks look there (`aware`); where nothing is known,
messages pass through the host. MPICOLL_GPU_AWARE=0 or 1 overrides.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .errors import ArgumentError

SIZES = (8, 64 << 10, 4 << 20)  # [B]: eager, at the edge, and by rendezvous in every library
SECONDS = 120.0  # for the child job; a hang is a failure
GRACE = 5.0  # for what is left of it to end, once it was killed
MARK = "mpicoll-probe "
#: Settings that can change what a library does with device memory.
SETTINGS = re.compile(
    r"UCX_|MPIR_CVAR_(?!ENABLE_HEAVY_YIELD|CH4_PROGRESS)|MPICH_GPU|MV2_|FI_|LD_LIBRARY_PATH$|"
    r"OMPI_MCA_(pml|btl|osc|mtl|accelerator|opal_cuda|opal_common_ucx)|MPI4PY_LIBMPI$"
)
#: What a launcher leaves in its ranks' environment; a job started from there must not see it.
LAUNCHER = ("PMI_", "PMIX_", "PRTE_", "OMPI_COMM", "OMPI_UNIVERSE", "OPAL_", "HYDI_", "HYDRA_", "MPI_LOCAL")


class Verdict(NamedTuple):
    """`aware` is None where there is nothing to prove it on; `how` says how it is known."""

    aware: bool | None
    how: str


# -- asking ------------------------------------------------------------------------------------------------


def aware() -> Verdict:
    """Whether MPI may be given device memory in this process. Local, and never a guess."""
    override = os.environ.get("MPICOLL_GPU_AWARE")
    if override not in (None, "", "0", "1"):
        raise ArgumentError(f"MPICOLL_GPU_AWARE is 0 or 1, not {override!r}")
    if override:
        return Verdict(override == "1", f"MPICOLL_GPU_AWARE={override}")
    return _remembered()


@functools.cache
def _remembered() -> Verdict:
    known = _read()
    found: Any = known.get(key()) if known else None
    try:
        return Verdict(bool(found["aware"]), f"probe of {found['when']}: {found['how']}")
    except (KeyError, TypeError):  # nothing is known, or what was written is not whole
        return Verdict(None, "not proved on this machine, library and settings; run `mpicoll probe` once")


def cache_file() -> Path:
    """Where verdicts are kept: in MPICOLL_CACHE, else in the user's cache directory."""
    own = os.environ.get("MPICOLL_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return (Path(own) if own else base / "mpicoll") / "gpu-aware.json"


def _read() -> dict[str, Any]:
    try:
        found = json.loads(cache_file().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def remember(where: str, verdict: Verdict) -> None:
    """Write a verdict to the cache."""
    path = cache_file()
    known = _read() | {where: {"aware": verdict.aware, "how": verdict.how, "when": time.strftime("%Y-%m-%d")}}
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    temporary.replace(path)
    _remembered.cache_clear()


def key() -> str:
    """Names machine (driver and devices), MPI library and settings, as far as they decide the matter."""
    from mpi4py import MPI

    models = [
        line.partition(":")[2].strip()
        for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
        for line in read_text(path).splitlines()
        if line.startswith("Model:")
    ]
    settings = sorted(f"{name}={value}" for name, value in os.environ.items() if SETTINGS.match(name))
    facts = [
        platform.machine(),
        read_text(Path("/proc/driver/nvidia/version")) or read_text(Path("/sys/module/amdgpu/version")),
        *models,
        MPI.Get_library_version(),
        *settings,
    ]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:32]


def read_text(path: Path) -> str:
    """A file's text, "" if there is none."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


# -- proving -----------------------------------------------------------------------------------------------


def launcher() -> list[str]:
    """How a job of two ranks is started: MPICOLL_PROBE_LAUNCHER, else the mpiexec that is found first."""
    said = os.environ.get("MPICOLL_PROBE_LAUNCHER")
    if said:
        return shlex.split(said)
    beside = Path(sys.executable).parent / "mpiexec"
    found = str(beside) if beside.exists() else shutil.which("mpiexec") or shutil.which("mpirun")
    if found is None:
        raise ArgumentError("no mpiexec on the path; set MPICOLL_PROBE_LAUNCHER, such as 'srun -n 2'")
    return [found, "-n", "2"]


def prove(command: Sequence[str] | None = None, seconds: float = SECONDS) -> tuple[Verdict, dict[str, Any]]:
    """Run the child job and judge how it ended; gives what the library says of itself, too.

    The verdict is remembered, but for "no device". `command` replaces the child (for tests).
    """
    if command is None:
        command = [*launcher(), sys.executable, "-m", "mpicoll.probe_job"]
    env = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHER)}
    env["PRTE_MCA_rmaps_default_mapping_policy"] = ":oversubscribe"  # Open MPI, with fewer than two cores
    process = subprocess.Popen(
        list(command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=env, text=True, errors="replace", start_new_session=True,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=seconds)
        ended = _ending(process.returncode)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = _rest(process)
        ended = f"no end after {seconds:g} s"
    said = _said(out)
    verdict = _judge(said, ended, process.returncode, err)
    if verdict.aware is not None and "key" in said:
        remember(said["key"], verdict)
    return verdict, said.get("reported", {})


def _rest(process: subprocess.Popen[str]) -> tuple[str, str]:
    """What a killed job had printed. Ranks may outlive it, in sessions of their own, and hold the pipes."""
    try:
        return process.communicate(timeout=GRACE)
    except subprocess.TimeoutExpired as error:
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
        process.wait()
        out, err = (part if isinstance(part, bytes) else b"" for part in (error.stdout, error.stderr))
        return out.decode(errors="replace"), err.decode(errors="replace")


def _ending(status: int) -> str:
    number = -status if status < 0 else status - 128
    try:
        return f"it was ended by {signal.Signals(number).name}"
    except ValueError:
        return f"exit status {status}"


def _said(out: str) -> dict[str, Any]:
    said: dict[str, Any] = {}
    for line in out.splitlines():
        if MARK in line:
            with contextlib.suppress(ValueError):  # a job that was killed may leave half a line
                said |= json.loads(line.partition(MARK)[2])
    return said


def _judge(said: dict[str, Any], ended: str, status: int, err: str) -> Verdict:
    if "no_device" in said:
        return Verdict(None, f"no device: {said['no_device']}")
    if status == 0 and said.get("proved"):
        return Verdict(True, f"device memory arrived whole in messages of {', '.join(map(str, SIZES))} bytes")
    if "trying" in said:
        wrong = f"; {said['wrong']}" if "wrong" in said else ""
        return Verdict(False, f"{ended} while it sent {said['trying']} bytes of device memory{wrong}")
    tail = " ".join(err.split())[-300:]
    return Verdict(None, f"the child job did not come as far as sending: {ended}; {tail}")
