"""Whether MPI may be given device memory: proved by a child job, and remembered.

What a library says of itself is reported and not believed: Open MPI was seen to say no though its UCX can,
and yes though the transport in use cannot; and a library that cannot does not say so when it is given a
device address, it crashes. So ``mpicoll probe`` starts a job of two ranks that send each other device memory,
small and large, by blocking and persistent messages, and compare what arrives. If that job ends well the
machine, library and settings that it ran with are written to the user's cache as proved; if it crashes,
hangs or delivers wrong bytes, as not able. Ranks look there (`aware`); where nothing is known, messages pass
through the host. MPICOLL_GPU_AWARE=0 or 1 overrides.
"""

from __future__ import annotations

import contextlib
import ctypes
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

from . import device
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
        for line in _text(path).splitlines()
        if line.startswith("Model:")
    ]
    settings = sorted(f"{name}={value}" for name, value in os.environ.items() if SETTINGS.match(name))
    facts = [
        platform.machine(),
        _text(Path("/proc/driver/nvidia/version")) or _text(Path("/sys/module/amdgpu/version")),
        *models,
        MPI.Get_library_version(),
        *settings,
    ]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:32]


def _text(path: Path) -> str:
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
        command = [*launcher(), sys.executable, "-m", "mpicoll.probe"]
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


# -- the child ---------------------------------------------------------------------------------------------


def child() -> int:
    """What each of the two ranks does."""
    devices = device.count()
    if devices:
        device.select_device(0 if devices == 1 else None)
    from mpi4py import MPI

    comm = MPI.COMM_WORLD

    def say(**what: Any) -> None:
        if comm.rank == 0:
            print(MARK + json.dumps(what), flush=True)

    say(key=key(), reported=reported())
    fewest = comm.allreduce(devices, MPI.MIN)
    if not fewest:
        say(no_device=_why_none())
        return 0
    if comm.size != 2:
        say(wrong=f"the launcher started {comm.size} ranks instead of 2")
        return 1
    for nbytes in SIZES:
        say(trying=nbytes)
        problem = _exchange(comm, nbytes)
        worst = [text for text in comm.allgather(problem) if text]
        if worst:
            say(wrong=worst[0])
            return 1
    say(proved=True)
    return 0


def _why_none() -> str:
    try:
        device.cupy().cuda.runtime.getDeviceCount()
    except (ArgumentError, RuntimeError) as error:
        return str(error)
    return "CuPy counts none"


def _exchange(comm: Any, nbytes: int) -> str | None:
    """Send device memory to the other rank and back in both ways; what is wrong with what came."""
    from mpi4py import MPI

    module = device.cupy()
    other = 1 - comm.rank
    pattern = module.arange(nbytes, dtype="uint8")
    mine, theirs = pattern + comm.rank + 1, module.zeros(nbytes, "uint8")
    for persistent in (False, True):
        theirs.fill(0)
        device.current_stream().synchronize()
        source = MPI.buffer.fromaddress(int(mine.data.ptr), nbytes)
        target = MPI.buffer.fromaddress(int(theirs.data.ptr), nbytes)
        if persistent:
            requests = [comm.Recv_init(target, other), comm.Send_init(source, other)]
            MPI.Prequest.Startall(requests)
            MPI.Request.Waitall(requests)
            for request in requests:
                request.Free()
        else:
            comm.Sendrecv(source, other, recvbuf=target, source=other)
        wrong = int((theirs != pattern + other + 1).sum())
        if wrong:
            return f"{wrong} of {nbytes} bytes wrong{' (persistent)' if persistent else ''}"
    return None


# -- what a library says of itself -------------------------------------------------------------------------


def reported() -> dict[str, Any]:
    """What this process's MPI library says about device memory; absent where it is not asked so."""
    from mpi4py import MPI

    library = ctypes.CDLL(MPI.__file__)
    facts: dict[str, Any] = {}
    for name in ("cuda", "rocm", "hip"):
        query = getattr(library, f"MPIX_Query_{name}_support", None)
        if query is not None:
            facts[f"MPIX_Query_{name}_support"] = int(query())
    info = MPI.COMM_WORLD.Get_info()
    kinds = info.Get("mpi_memory_alloc_kinds")
    info.Free()
    if kinds is not None:
        facts["mpi_memory_alloc_kinds"] = kinds
    for name in ("MPIR_CVAR_ENABLE_GPU", "MPIR_CVAR_NOLOCAL", "opal_built_with_cuda_support"):
        value = _control_variable(library, name)
        if value is not None:
            facts[name] = value
    loaded = {line.split()[-1] for line in _text(Path("/proc/self/maps")).splitlines() if "/" in line}
    wanted = re.compile(r"/(libucp|libuct_cuda|libuct_rocm|libfabric|libcuda|libamdhip64)\b[^/]*$")
    facts["loaded"] = sorted(path for path in loaded if wanted.search(path))
    return facts


def _control_variable(library: Any, name: str) -> int | None:
    """An integer control variable of MPI's tool interface."""
    level, index, number = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    handle, value = ctypes.c_void_p(), ctypes.c_int64(0)
    if library.MPI_T_init_thread(0, ctypes.byref(level)):
        return None
    try:
        if library.MPI_T_cvar_get_index(name.encode(), ctypes.byref(index)):
            return None
        if library.MPI_T_cvar_handle_alloc(index, None, ctypes.byref(handle), ctypes.byref(number)):
            return None
        failed = library.MPI_T_cvar_read(handle, ctypes.byref(value))
        library.MPI_T_cvar_handle_free(ctypes.byref(handle))
        return None if failed else value.value
    finally:
        library.MPI_T_finalize()


if __name__ == "__main__":
    sys.exit(child())
