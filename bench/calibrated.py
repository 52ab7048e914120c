"""What a calibration says of measured times: columns of the summary, and the report's section on them.

Every row of a summary carries `model_seconds` (what the model says of that algorithm on the machine that
`mpicoll calibrate` measured), `bound_seconds` (what no algorithm for the collective can beat there by
messages between ranks) and `residual` (model/measured − 1). NaN stands for what is not known: all three
without a calibration and where ranks have links of two kinds (several ranks on each of several nodes: a
calibration is of one kind), and the model of what is no algorithm of ours. Nothing here is fitted to the rows
themselves; for that see `prediction`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from mpicoll.bench import figures_model, stats
from mpicoll.bench.frame import Results
from mpicoll.bench.panels import grave_hazards, panel_title, place_names
from mpicoll.bench.prediction import LARGE, case_of
from mpicoll.bench.sections import Loaded, Section, Table
from mpicoll.bench.sizes import format_seconds
from mpicoll.bounds import bound
from mpicoll.collectives import collective
from mpicoll.cost import Machine, cost, faster
from mpicoll.curves import straight
from mpicoll.errors import ArgumentError, MpicollError

COLUMNS = ("model_seconds", "bound_seconds", "residual")
VARIABLE = "MPICOLL_CALIBRATION"
_BESIDE = ("machine.json", "calibration/machine.json")


class Calibration(NamedTuple):
    """A machine, and the file that it was read from."""

    path: Path
    machine: Machine

    def words(self, cpu: str | None) -> str:
        """Which file, where it was measured, and for what; `cpu` is that of the results."""
        machine = self.machine
        where = f", on host {machine.host}" if machine.host else "; where, the file does not say"
        if machine.cpu:
            where += f" with {machine.cpu}" + (f" (these results: {cpu})" if cpu != machine.cpu else "")
        pairs = ", ".join(pair for pair, _ in machine.combines)
        only = f"; what combines has a model if it is {pairs}" if pairs else ""
        return f"{self.path} (digest {machine.digest}): {machine.name}{where}{only}"


def calibrations(given: Path | None, directories: Sequence[Path], results: Results) -> dict[str, Calibration]:
    """That of each environment: of the option or variable for all, else what lies beside.

    Raises `ArgumentError` for a broken file, and if two lie beside results of one environment.
    """
    named = given or (Path(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None)
    if named is not None:
        return dict.fromkeys(results.environments, Calibration(named, Machine.read(named)))
    found: dict[str, Calibration] = {}
    places = results.samples[["source", "environment"]].drop_duplicates()
    for source, environment in places.itertuples(index=False):
        above = [folder for folder in directories if Path(source).is_relative_to(folder)]
        paths = (folder / name for folder in (Path(source), *above) for name in _BESIDE)
        for path in filter(Path.is_file, paths):
            new = Calibration(path, Machine.read(path))
            old = found.setdefault(environment, new)
            if old.machine != new.machine:
                raise ArgumentError(
                    f"{old.path} and {path} are different machines; say which with --calibration FILE"
                )
    return found


def add_columns(summary: pd.DataFrame, known: Mapping[str, Machine]) -> None:
    """Put `COLUMNS` into a summary, in place; `known` has the machines of environments."""
    told = [_words_on(row, known.get(row["environment"])) for row in summary.to_dict("records")]
    for place, name in enumerate(COLUMNS[:2]):
        summary[name] = pd.Series([one[place] for one in told], index=summary.index, dtype=float)
    measured = summary["median"].astype(float) if "median" in summary else float("nan")
    summary["residual"] = summary["model_seconds"] / measured - 1


def _words_on(row: dict[Any, Any], machine: Machine | None) -> tuple[float | None, float | None]:
    """Seconds of the model and of the bound."""
    if machine is None or pd.isna(row["total_bytes"]):
        return None, None
    if 1 < row.get("nodes", 1) < row["ranks"]:
        return None, None  # a calibration is of one kind of link
    size, nbytes = int(row["ranks"]), float(row["total_bytes"])
    known = machine.combining(row["dtype"], row["op"]) if collective(row["collective"]).reduces else machine
    # Where only other types and operations were calibrated, a bound without combining is one still.
    least = bound(row["collective"], size, nbytes, known or faster(machine, combine=straight(0, 0))).seconds
    try:
        case = case_of(row)
        if case is None or known is None:
            return None, least
        entry, params, channels = case
        return cost(entry, size, nbytes, known, params, channels).seconds, least
    except MpicollError:  # an algorithm of a file that is not loaded here, or one without a law for so many
        return None, least


def section(data: Loaded) -> Section | None:
    """Model and bound under the measurements, a part for each panel; None without a calibration."""
    told = data.summary
    if "bound_seconds" not in told or not told["bound_seconds"].notna().any():
        return None
    names = place_names(told)
    parts = [
        _part(data, key, panel, names)
        for key, panel in stats.panels(told)
        if (panel["model_seconds"].notna() & panel["median"].notna()).any()
    ]
    words = [
        "Times by the model, on machines that `mpicoll calibrate` measured with messages between two ranks; "
        "nothing is fitted to these results. The bound holds for what is made of such messages: an MPI "
        "library's own call that uses shared memory may beat it.",
        *(f"{names.get(environment, environment)}: {by}." for environment, by in data.calibrations.items()),
    ]
    return Section("Model and bound by calibration", words, parts=parts)


def _part(data: Loaded, key: dict[str, Any], panel: pd.DataFrame, names: dict[str, str]) -> Section:
    heading = f"{panel_title(key)}, {names[key['environment']]}"
    known = panel[panel["residual"].notna() & (panel["status"] == "ok")]
    words = grave_hazards(data, key)
    for text, rows in (("below 64 KiB", known[known["msg_bytes"] < LARGE]),
                       ("from 64 KiB on", known[known["msg_bytes"] >= LARGE])):  # fmt: skip
        if len(rows):
            words.append(
                f"Median error of the model {text}: {rows['residual'].abs().median():.0%} "
                f"({len(rows)} rows, largest {rows['residual'].abs().max():.0%})."
            )
    charts = {"by-size": figures_model.by_size(panel, heading)} if (panel["msg_bytes"] > 0).any() else {}
    return Section(f"Model of {heading}", words, charts, [_table(known)], folded=True)


def _table(known: pd.DataFrame) -> Table:
    """Per size the predicted and the measured winner, and how near the best came to the bound."""
    rows = []
    for _, cell in known.groupby("msg_bytes", sort=True):
        first, chosen = (cell.sort_values(by).iloc[0] for by in ("median", "model_seconds"))
        rows.append(
            (first["size"], first["contender"], format_seconds(first["median"]),
             chosen["contender"], format_seconds(chosen["model_seconds"]),
             format_seconds(first["bound_seconds"]), f"{first['bound_seconds'] / first['median']:.2f}")
        )  # fmt: skip
    columns = ("size", "measured best", "time", "predicted best", "predicted", "bound", "bound / best")
    return Table("The best of our algorithms, by measurement and by the model.", columns, rows)
