"""How often verdicts err: MPI's own call against itself, and against one that is a tenth slower.

    python results/false-positives/analyse.py RUN...      # run directories, one launch each

Writes `medians.csv` (each launch's median of each contender in each case, in seconds) and `verdicts.csv`
(of all launches) beside itself, and prints how the verdicts fall with the first five launches and with all.
"""

import sys
from pathlib import Path

import pandas as pd

from mpicoll.bench import frame, stats

HERE = Path(__file__).parent
CASE = ["collective", "dtype", "msg_bytes"]
KEPT = [*CASE, "contender", "launches", "median", "ratio", "ratio_low", "ratio_high", "launch_scatter",
        "test", "p", "p_holm", "leaning", "verdict"]  # fmt: skip


def main(runs):
    """Analyse, write and print."""
    for count in dict.fromkeys((min(5, len(runs)), len(runs))):
        samples = frame.load([Path(run) for run in runs[:count]]).samples
        summary = stats.summarise(samples)
        for name in ("again", "slow"):
            mine = summary[summary["contender"] == name]
            said = mine["verdict"].value_counts().to_dict()
            leans = mine["leaning"].value_counts().to_dict()
            print(f"{count} launches, {name}: {len(mine)} cells, verdicts {said}, leanings {leans}")
    launches = samples[samples["warmup"].eq(False) & samples["status"].eq("ok")].copy()
    launches["run"] = launches["source"].map(
        {source: n for n, source in enumerate(samples["source"].unique())}
    )
    medians = launches.groupby([*CASE, "contender", "run"])["seconds"].median().unstack("run")
    medians.to_csv(HERE / "medians.csv", float_format="%.4g")
    summary[KEPT].to_csv(HERE / "verdicts.csv", index=False, float_format="%.4g")
    pd.testing.assert_series_equal(summary["launches"], summary["launches"].clip(lower=len(runs)))


if __name__ == "__main__":
    main(sys.argv[1:])
