"""What messages cost on the links of a job: α and β of each calibration that lies beside the results."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mpicoll.bench.sections import Loaded, Section, Table
from mpicoll.bench.sizes import format_seconds
from mpicoll.cost import Machine
from mpicoll.curves import Curve

_LARGE = 16 << 20  # bytes, where a rate is that of the last byte


def beside(data: Loaded) -> Iterator[tuple[Path, Machine]]:
    """The calibrations in the results and in the directories that were named, or in their `calibration*`."""
    folders = dict.fromkeys([*map(Path, data.given), *map(Path, data.runs)])
    for folder in folders:
        for path in (*folder.glob("machine.json"), *sorted(folder.glob("calibration*/machine.json"))):
            yield path, Machine.read(path)


def section(data: Loaded) -> Section | None:
    """A row for each kind of link that was measured; None where none was."""
    rows = [
        (str(path.parent.name), machine.name, *_cells(machine.one_way), *_cells(machine.exchange))
        for path, machine in beside(data)
    ]
    if not rows:
        return None
    columns = ("calibration", "measured", "α, one way", "β, one way", "α, both ways", "β, both ways")
    words = [
        "A message of 1 byte takes α; β is the rate of the last bytes of a message of 16 MiB. Both ways: "
        "while as much comes back. From ping-pongs of two ranks (`mpicoll calibrate`), one kind of link each."
    ]
    return Section("Links", words, tables=[Table("What links cost.", columns, rows)])


def _cells(curve: Curve) -> tuple[str, str]:
    rate = curve.at(_LARGE)[1]
    return format_seconds(curve(1)), f"{1e-9 / rate:.3g} GB/s" if rate > 0 else "-"
