"""How well the model predicts what was measured: medians per collective, winners, fractions of the bound.

    python results/model/analyse.py RAW

RAW has, of both libraries, LIB-calibration-M and LIB-p2-M of several launches, and LIB-auto.csv. Writes into
the folder of this file: `LIB-p2.csv` (every row with the model's word), `calibration-LIB/` (the launches
merged), `auto-LIB.csv` and `analysis.md` (the tables below), which it prints, too. Two predictions, of which
neither saw what it predicts: *calibrated* from `mpicoll calibrate` alone; *fitted* to every second size of
the same sweep, for the sizes between.
"""

import shutil
import sys
from pathlib import Path

import pandas as pd

from mpicoll.bench import calibrated, cli, frame, prediction, stats
from mpicoll.cost import Machine

HERE = Path(__file__).parent
KEPT = ["environment", "collective", "contender", "algorithm", "params", "channels", "ranks", "msg_bytes",
        "total_bytes", "launches", "samples", "median", "median_low", "median_high", "bound_seconds",
        "model_seconds", "residual", "fitted_seconds", "held_out"]  # fmt: skip


def rows_of(runs, machine):
    """The summary of some launches, with the words of the calibrated and of the fitted machine."""
    summary = stats.summarise(frame.load(runs).samples)
    calibrated.add_columns(summary, dict.fromkeys(summary["environment"].unique(), machine))
    told = prediction.predict(summary)
    summary["fitted_seconds"], summary["held_out"] = float("nan"), False
    if len(told):
        summary.loc[told.index, "fitted_seconds"] = told["fitted_seconds"]
        summary.loc[told.index, "held_out"] = told["held_out"]
    return summary


def errors(rows, column):
    """Median of |predicted/measured - 1| below and from 64 KiB on, with the number of rows, as text."""
    off = (rows[column] / rows["median"] - 1).abs()
    large = rows["msg_bytes"] >= calibrated.LARGE
    texts = []
    for part in (off[~large].dropna(), off[large].dropna()):
        texts.append(f"{part.median():.0%} ({len(part)})" if len(part) else "-")
    return texts


def lines_of(name, rows):
    """A line of the table for each collective, and one for all."""
    own = rows[rows["model_seconds"].notna() & rows["median"].notna() & (rows["contender"] != "auto")]
    totals = [0, 0, 0, 0]
    for kind, mine in own.groupby("collective", sort=False):
        fitted = mine[mine["held_out"]]
        won = [*prediction.winners(mine, "model_seconds"), *prediction.winners(fitted)]
        totals = [a + b for a, b in zip(totals, won, strict=True)]
        top = mine[mine["msg_bytes"] == mine["msg_bytes"].max()]
        share = (top["bound_seconds"] / top["median"]).max()
        best = mine.loc[mine.groupby("msg_bytes")["median"].idxmin()]
        under = (best["median"] < 0.95 * best["bound_seconds"]).sum()
        yield [name, kind, *errors(mine, "model_seconds"), f"{won[0]}/{won[1]}",
               *errors(fitted, "fitted_seconds"), f"{won[2]}/{won[3]}", f"{share:.2f}",
               f"{under}/{len(best)}"]  # fmt: skip
    fitted = own[own["held_out"]]
    yield [name, "all", *errors(own, "model_seconds"), f"{totals[0]}/{totals[1]}",
           *errors(fitted, "fitted_seconds"), f"{totals[2]}/{totals[3]}", "", ""]  # fmt: skip


def autos(raw):
    """Per collective where the calibrated auto chose otherwise, and its time over that of the nominal one."""
    yield [
        "`auto`",
        "collective",
        "same algorithm",
        "ratio there",
        "another",
        "ratio there: median",
        "best",
        "worst",
    ]
    yield ["---"] * 8
    for lib in ("mpich", "openmpi"):
        rows = pd.read_csv(raw / f"{lib}-auto.csv")
        shutil.copyfile(raw / f"{lib}-auto.csv", HERE / f"auto-{lib}.csv")
        for kind, mine in (*rows.groupby("collective", sort=False), ("all", rows)):
            same = mine["nominal"] == mine["calibrated"]
            other = mine[~same]["ratio"]
            ends = (
                [f"{x:.2f}" for x in (other.median(), other.min(), other.max())] if len(other) else ["-"] * 3
            )
            null = (
                f"{mine[same]['ratio'].min():.2f} to {mine[same]['ratio'].max():.2f}" if same.any() else "-"
            )
            yield [lib, kind, str(same.sum()), null, str(len(other)), *ends]


def as_text(table):
    """A table in Markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in table) + "\n"


def main(raw):
    """Analyse, write and print."""
    head = ["", "collective", "calibrated: below 64 KiB", "from 64 KiB on", "winner", "fitted: below 64 KiB",
            "from 64 KiB on", "winner", "bound / best at the largest size",
            "best more than 5 % under the bound"]  # fmt: skip
    table = [head, ["---"] * len(head)]
    for lib in ("mpich", "openmpi"):
        target = HERE / f"calibration-{lib}"
        launches = sorted(map(str, raw.glob(f"{lib}-calibration-*[0-9]")))
        if cli.main(["calibrate", "--merge", *launches, "-o", str(target)]):
            raise SystemExit(1)
        machine = Machine.read(target)
        rows = rows_of([run for run in sorted(raw.glob(f"{lib}-p2-*")) if run.is_dir()], machine)
        rows[KEPT].to_csv(HERE / f"{lib}-p2.csv", index=False, float_format="%.5g")
        table += lines_of(f"{lib}, P = 2", rows)
    text = as_text(table)
    if (raw / "openmpi-auto.csv").exists():
        text += "\n" + as_text(autos(raw))
    (HERE / "analysis.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
