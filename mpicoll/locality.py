"""Sockets and NUMA domains of this machine, from /sys. Standard library only; unknown stays None."""

from __future__ import annotations

from collections.abc import Iterable, Set
from pathlib import Path

_SYSTEM = Path("/sys/devices/system")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id(file: Path = _BOOT_ID) -> str | None:
    """What tells this running kernel from all others, or None where it does not say."""
    try:
        return file.read_text().strip() or None
    except OSError:
        return None


def parse_cpus(text: str) -> set[int]:
    """The numbers of a list in Linux's notation.

    >>> sorted(parse_cpus("0-2,7"))
    [0, 1, 2, 7]
    """
    numbers: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        low, _, high = part.partition("-")
        numbers.update(range(int(low), int(high or low) + 1))
    return numbers


def numa_of(cpus: Set[int], system: Path = _SYSTEM) -> int | None:
    """The NUMA domain that has all of these CPUs, or None where there are several, or none is known."""
    for folder in system.glob("node/node[0-9]*"):
        try:
            if cpus and cpus <= parse_cpus((folder / "cpulist").read_text()):
                return int(folder.name.removeprefix("node"))
        except (OSError, ValueError):  # a domain that went offline meanwhile, or says nothing
            continue
    return None


def socket_of(cpus: Iterable[int], system: Path = _SYSTEM) -> int | None:
    """The socket (physical package) that has all of these CPUs, or None as for `numa_of`."""
    try:
        sockets = {int((system / f"cpu/cpu{cpu}/topology/physical_package_id").read_text()) for cpu in cpus}
    except (OSError, ValueError):
        return None
    # Virtual machines may say -1 for "unknown".
    return sockets.pop() if len(sockets) == 1 and min(sockets) >= 0 else None
