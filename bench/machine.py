"""What this machine is: facts read from the operating system, without MPI. Unknown stays None."""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mpicoll.locality import parse_cpus

_CPU = Path("/sys/devices/system/cpu")
# Variables that change what MPI does, or that say where a job runs. Nothing else of the environment is kept.
_ENVIRONMENT = (
    "MPIR_",
    "MPICH_",
    "OMPI_MCA_",
    "PRTE_MCA_",
    "PMIX_MCA_",
    "UCX_",
    "FI_",
    "I_MPI_",
    "MV2_",
    "MPICOLL_",
)
_SLURM_NAMES = (
    "JOB_ID", "JOB_NAME", "CLUSTER_NAME", "JOB_PARTITION", "JOB_NUM_NODES", "JOB_NODELIST", "NTASKS",
    "NTASKS_PER_NODE", "CPUS_PER_TASK", "CPU_BIND",
)  # fmt: skip


def read_text(path: str | Path) -> str | None:
    """A small file's text without surrounding blanks, or None."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None


def compact(numbers: Iterable[int]) -> str:
    """Numbers as ranges.

    >>> compact([3, 0, 1, 2, 7])
    '0-3,7'
    """
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def affinity() -> list[int]:
    """The logical CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def cpu_quota() -> float | None:
    """How many CPUs' worth of time the control group allows, or None for no limit."""
    own = (read_text("/proc/self/cgroup") or "").rpartition("::")[2]
    for folder in dict.fromkeys((f"/sys/fs/cgroup{own}", "/sys/fs/cgroup")):
        quota, _, period = (read_text(f"{folder}/cpu.max") or "max").partition(" ")
        if quota.isdigit() and period.isdigit():
            return int(quota) / int(period)
    quota, period = (read_text(f"/sys/fs/cgroup/cpu/cpu.cfs_{name}_us") or "" for name in ("quota", "period"))
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() else None


def load() -> list[float] | None:
    """The load averages over 1, 5 and 15 minutes."""
    with contextlib.suppress(OSError, AttributeError):
        return [round(value, 2) for value in os.getloadavg()]
    return None


def busy_cpus(seconds: float = 0.25) -> float | None:
    """How many CPUs of this machine are busy while this process sleeps; None where that cannot be read.

    A load average would count what ended up to a minute ago: with launches one after the other,
    the launch before.
    """
    before, begun = _idle_seconds(), time.monotonic()
    time.sleep(seconds)
    after, passed = _idle_seconds(), time.monotonic() - begun
    if before is None or after is None:
        return None
    return max(0.0, (os.cpu_count() or 1) - (after - before) / passed)


def _idle_seconds() -> float | None:
    """Seconds that all CPUs together have been idle, or waiting for a disk (proc(5))."""
    fields = (read_text("/proc/stat") or "").partition("\n")[0].split()
    if len(fields) < 6:
        return None
    return (int(fields[4]) + int(fields[5])) / os.sysconf("SC_CLK_TCK")


def _cpuinfo() -> tuple[str | None, bool | None]:
    """CPU model, and whether a hypervisor shows itself."""
    text = read_text("/proc/cpuinfo")
    if text is None:
        return platform.processor() or None, None
    pairs = (line.partition(":") for line in text.splitlines() if ":" in line)
    fields = {key.strip(): value.strip() for key, _, value in pairs}
    model = fields.get("model name") or fields.get("cpu model") or fields.get("cpu")
    if model is None and "CPU part" in fields:  # ARM names no model
        model = f"CPU implementer {fields.get('CPU implementer')} part {fields['CPU part']}"
    return model, "hypervisor" in fields.get("flags", "").split() if "flags" in fields else None


def physical_core(cpu: int) -> tuple[str, str]:
    """Package and core of a logical CPU: equal for hardware threads of one core."""
    folder = _CPU / f"cpu{cpu}" / "topology"
    core = read_text(folder / "core_id")
    return read_text(folder / "physical_package_id") or "0", core if core is not None else f"cpu{cpu}"


def _turbo() -> str | None:
    no_turbo, boost = read_text(_CPU / "intel_pstate/no_turbo"), read_text(_CPU / "cpufreq/boost")
    if no_turbo is not None:
        return "off" if no_turbo == "1" else "on"
    return {"0": "off", "1": "on"}.get(boost or "")


def memory_bytes() -> int | None:
    """How much memory the machine has."""
    with contextlib.suppress(ValueError, OSError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return None


def describe_machine() -> dict[str, Any]:
    """The facts that decide whether two results are of one kind of machine, and those that spoil one."""
    model, virtual = _cpuinfo()
    online = parse_cpus(read_text(_CPU / "online") or "") or set(range(os.cpu_count() or 1))
    governors = {read_text(_CPU / f"cpu{cpu}/cpufreq/scaling_governor") for cpu in online} - {None}
    return {
        "cpu_model": model,
        "architecture": platform.machine(),
        "logical_cpus": len(online),
        "physical_cores": len({physical_core(cpu) for cpu in online}),
        "cpu_quota": cpu_quota(),
        "memory_bytes": memory_bytes(),
        "governor": ", ".join(sorted(filter(None, governors))) or None,
        "turbo": _turbo(),
        "virtual": virtual,
        "kernel": platform.release(),
        "system": platform.freedesktop_os_release().get("PRETTY_NAME")
        if Path("/etc/os-release").exists()
        else platform.system(),
    }


def environment() -> dict[str, str]:
    """The variables set that change what MPI or mpicoll does."""
    return {key: os.environ[key] for key in sorted(os.environ) if key.startswith(_ENVIRONMENT)}


def slurm() -> dict[str, str]:
    """The Slurm job that this is part of; empty outside of one."""
    names = [f"SLURM_{name}" for name in _SLURM_NAMES]
    return {name: os.environ[name] for name in names if name in os.environ}


def version(package: str) -> str | None:
    """The installed version of a package."""
    from importlib import metadata  # slow, and not needed to show help

    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return None


def software() -> dict[str, Any]:
    """Versions of what runs, and the state of mpicoll's source if it is a git checkout."""
    return {
        "python": sys.version.split()[0],
        "implementation": sys.implementation.name,
        **{name: version(name) for name in ("mpicoll", "mpi4py", "numpy")},
        "git": git_state(Path(__file__).resolve().parent.parent),
    }


def git_state(source: Path) -> dict[str, Any] | None:
    """Commit of a checkout, and whether tracked files were changed; None if it is not mpicoll's."""

    def git(*words: str) -> str:
        argv = ["git", "-C", str(source), *words]
        return subprocess.run(argv, capture_output=True, text=True, timeout=10, check=True).stdout.strip()

    with contextlib.suppress(OSError, subprocess.SubprocessError):
        git("ls-files", "--error-unmatch", "mpicoll/__init__.py")
        return {"commit": git("rev-parse", "HEAD"), "changed": bool(git("status", "--porcelain", "-uno"))}
    return None
