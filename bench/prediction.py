"""Model against measurement: a machine fitted to some rows of a summary predicts the others.

The time of a row is linear in what the machine has (see `cost`): a call, messages and their bytes, one way
and both ways (by size: protocols differ), gaps, bytes combined, bytes copied; and all bytes by the buffers of
the call (caches), those that ranks pass on apart. Coefficients are those of least relative error, none
negative, with a loss that outliers cannot rule. Every other size is held out of the fit and predicted; with
several numbers of ranks, the largest is held out, too. Rows of more ranks than cores are not fitted: their
time is the operating system's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.optimize import nnls

import mpicoll.algorithms  # noqa: F401  (importing registers them)
from mpicoll.bench.sections import Loaded, Section, Table
from mpicoll.bench.sizes import format_bytes
from mpicoll.collectives import collective
from mpicoll.cost import first_apart
from mpicoll.errors import MpicollError
from mpicoll.loads import Load, blocks_per_total
from mpicoll.ownwork import copied, relays, touched
from mpicoll.registry import Algorithm, get
from mpicoll.steps import steps

TITLE = "Model fitted to these results"
#: Errors of a model are told apart below and from so many bytes on.
LARGE = 64 << 10
KNOTS = (512.0, 8192.0, 131072.0)  # where curves may bend, by the size of a message [B]
#: Between these sizes of a call's buffers the cost of a byte is interpolated, by the logarithm [B].
BUFFERS = tuple(float(1 << k) for k in (16, 19, 21, 23, 25))
LEAST = 8  # rows of a machine that is fitted
_HUBER = 0.15
_ROUNDS = 30  # of reweighting
GROUP = ["environment", "thread_level", "engine"]  # what a machine is fitted to


class Setting(NamedTuple):
    """What the terms of a round depend on besides its load."""

    block: float  # [B]
    buffers: float  # of a call, on a rank [B]
    channels: int = 1
    passed_on: bool = False  # whether ranks send what they have just written


def _pieces(nbytes: float, messages: float) -> list[float]:
    """A curve's terms for some messages of equal size: their number, and their bytes between the knots."""
    ends = (0.0, *KNOTS, float("inf"))
    between = [max(0.0, min(nbytes, high) - low) for low, high in pairwise(ends)]
    return [messages, *(part * messages for part in between)]


def rising(buffers: float, knots: Sequence[float]) -> np.ndarray:
    """How far a size lies beyond each knot towards the next, from 0 to 1 by the logarithm; the first is 1.

    With coefficients that are not negative, what is made of it never falls with the size.

    >>> rising(2.0**18, (2.0**16, 2.0**20, 2.0**22)).tolist(), rising(2.0**21, (4.0, 8.0)).tolist()
    ([1.0, 0.5, 0.0], [1.0, 1.0])
    """
    at, logs = np.log2(max(buffers, 1.0)), np.log2(knots)
    return np.array([1.0, *np.clip((at - logs[:-1]) / np.diff(logs), 0.0, 1.0)])


def features(load: Load, at: Setting) -> np.ndarray:
    """What one rank needs for a round, in terms of the machine's unknowns."""
    messages, moved = max(load.messages, 1), load.blocks * at.block
    curve = np.array(_pieces(moved / messages / at.channels, messages * at.channels))
    curve[0] = at.channels
    far = moved * rising(at.buffers, BUFFERS)[1:]  # more than bytes from the caches
    passed_on = (
        moved * at.passed_on * (1 - np.append(rising(at.buffers, BUFFERS)[2:], 0.0))
    )  # falls with the size
    way = np.concatenate([curve, far, passed_on])
    both = np.concatenate([0 * way, way] if load.both_ways else [way, 0 * way])
    combined = load.reduced * at.block * rising(at.buffers, BUFFERS)
    return np.concatenate([[0.0, at.channels * (messages - 1)], both, combined, 0 * combined])


def case_of(row: dict[Any, Any]) -> tuple[Algorithm, dict[str, Any], int] | None:
    """Algorithm, parameters and channels of a row; None for what is not a flat algorithm of ours.

    Raises `MpicollError` for an algorithm that is not loaded here.
    """
    if row["implementation"] != "mpicoll":
        return None
    entry = get(row["collective"], row["algorithm"])
    if entry.hierarchical:
        return None  # a summary does not say which rank is where
    params = _params(row.get("params")) | ({"root": int(row["root"])} if "root" in entry.defaults else {})
    return entry, params, 1 if pd.isna(row.get("channels")) else int(row["channels"])


def row_features(row: dict[Any, Any]) -> np.ndarray | None:
    """The terms of a row's time; None for what is not an algorithm of ours."""
    case = case_of(row) if row["total_bytes"] else None
    if case is None:
        return None
    entry, params, channels = case
    size, nbytes, kind = int(row["ranks"]), float(row["total_bytes"]), entry.collective.name
    block = nbytes / blocks_per_total(entry, size, params)
    first = Setting(block, touched(kind, size) * nbytes, channels)
    then = first._replace(passed_on=relays(entry, size, params))
    total = features(Load(0, 0, 0, 0, False), first) * 0
    for number, (count, step) in enumerate(first_apart(steps(entry, size, params))):
        # The busiest rank of a step, whatever the machine: by bytes, then by messages.
        busiest = max(step, key=lambda one: (one.blocks, one.messages, one.reduced))
        total += count * features(busiest, then if number else first)
    total[0] = 1.0
    total[-len(BUFFERS) :] = copied(kind, size) * nbytes * rising(first.buffers, BUFFERS)
    return total


def _params(text: Any) -> dict[str, Any]:
    pairs = (part.split("=") for part in text.split(";")) if isinstance(text, str) and text else ()
    return {
        name: int(value) if value.lstrip("-").isdigit() else value for name, value in pairs if name != "root"
    }


def solve(matrix: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """Coefficients, none negative, of least relative error (Huber's loss); none for what no row has."""
    relative = matrix / seconds[:, None]
    seen = np.abs(relative).max(axis=0) > 0
    scale = np.abs(relative[:, seen]).max(axis=0)
    weights = np.ones(len(seconds))
    found = np.zeros(matrix.shape[1])
    for _ in range(_ROUNDS):
        root = np.sqrt(weights)
        found[seen] = nnls(relative[:, seen] / scale * root[:, None], root)[0] / scale
        weights = np.minimum(1.0, _HUBER / np.maximum(np.abs(relative @ found - 1), 1e-9))
    return found


def _features_of(row: Any, lost: dict[str, str]) -> np.ndarray | None:
    """The terms of a row; None, and why under the contender's name in `lost`, if there is no model of it."""
    try:
        return row_features(row.to_dict())
    except MpicollError as error:  # an algorithm of a file that is not loaded here
        why, unknown, _ = str(error).partition("; it has:")
        lost.setdefault(str(row["contender"]), why + (" (--load FILE.py brings one)" if unknown else ""))
        return None


def _groups(summary: pd.DataFrame, lost: dict[str, str]) -> Iterator[tuple[pd.DataFrame, np.ndarray]]:
    """What a machine is fitted to: rows, with the column `held_out`, and their terms."""
    # Imported results do not say whether ranks shared cores: only what is known not to be is predicted.
    own_cores = summary["oversubscribed"].eq(False).fillna(False).astype(bool)
    good = summary[(summary["status"] == "ok") & summary["median"].notna() & own_cores]
    for _, group in good.groupby(GROUP, dropna=False, sort=False):
        kept = [(index, f) for index, row in group.iterrows() if (f := _features_of(row, lost)) is not None]
        if not kept:
            continue
        rows = group[group.index.isin([index for index, _ in kept])].copy()
        rows["held_out"] = rows["msg_bytes"].isin(sorted(rows["msg_bytes"].unique())[1::2])
        if rows["ranks"].nunique() > 2:
            rows["held_out"] |= rows["ranks"] == rows["ranks"].max()
        yield rows, np.stack([f for _, f in kept])


def predict(summary: pd.DataFrame, lost: dict[str, str] | None = None) -> pd.DataFrame:
    """The rows that can be predicted, with the word on each of a machine that was fitted to some of them.

    Columns: `fitted_seconds`, `fitted_residual` (fitted/measured − 1) and `held_out`. Held out is every
    second size, and the largest number of ranks where there are several. What is not held out was fitted.
    Of which contenders there is no model, and why, goes into `lost`.
    """
    told = []
    for rows, matrix in _groups(summary, {} if lost is None else lost):
        train, seconds = ~rows["held_out"].to_numpy(bool), rows["median"].to_numpy(float)
        if train.sum() < LEAST:
            continue
        rows["fitted_seconds"] = matrix @ solve(matrix[train], seconds[train])
        told.append(rows)
    if not told:
        return pd.DataFrame()
    rows = pd.concat(told)
    rows["fitted_residual"] = rows["fitted_seconds"] / rows["median"] - 1
    return rows


def errors(rows: pd.DataFrame) -> pd.DataFrame:
    """Median absolute residual of held-out rows, per environment and collective, below and from 64 KiB on."""
    held: Any = rows[rows["held_out"]].copy()
    held["error"], held["large"] = held["fitted_residual"].abs(), held["msg_bytes"] >= LARGE
    return held.groupby(["environment", "collective", "large"])["error"].agg(["median", "size"]).reset_index()


def winners(rows: pd.DataFrame, column: str = "fitted_seconds") -> tuple[int, int]:
    """In how many cases of several the predicted winner won or tied (within 5 %, or by the intervals)."""
    right = cases = 0
    keys = [*GROUP, "collective", "ranks", "msg_bytes"]
    for _, group in rows[rows[column].notna()].groupby(keys, dropna=False):
        cell: Any = group
        if len(cell) < 2:
            continue
        cases += 1
        first = cell.loc[cell["median"].idxmin()]
        chosen = cell.loc[cell[column].idxmin()]
        tie = chosen["median"] <= 1.05 * first["median"] or chosen["median_low"] <= first["median_high"]
        right += bool(tie)
    return right, cases


def _too_few(summary: pd.DataFrame) -> list[str]:
    """A sentence, if there are rows of ours and nothing could be fitted to them, or predicted."""
    most = max((int((~rows["held_out"]).sum()) for rows, _ in _groups(summary, {})), default=0)
    return [
        f"No machine was fitted: it takes {LEAST} rows (an algorithm of ours at one size), and more sizes to "
        f"predict, as every second one is held out. Here are {most}: measure more sizes or algorithms."
    ] * (most > 0)


def section(data: Loaded) -> Section | None:
    """The section of a report: how well the model predicts sizes that it has not seen, per algorithm."""
    lost: dict[str, str] = {}
    rows = predict(data.summary, lost)
    unknown = [f"There is no model of {contender}: {why}." for contender, why in lost.items()]
    if rows.empty or not rows["held_out"].any():
        words = _too_few(data.summary) + unknown
        return Section(TITLE, words) if words else None
    held = rows[rows["held_out"]]
    per_kind, (right, cases) = errors(rows), winners(held)
    words = [
        "A machine fitted to every second size of these results (no calibration) predicts the sizes between: "
        f"median error {held['fitted_residual'].abs().median():.0%} over {len(held)} rows.",
        f"The algorithm predicted to win wins or ties in {right} of {cases} cases.",
        *unknown,
    ]
    held = held.assign(error=held["fitted_residual"].abs())
    by_algorithm = held.groupby(["collective", "contender"])["error"]
    tables = [
        Table(
            "Held-out error",
            ("environment", "collective", "sizes", "median error", "rows"),
            [(e, collective(c).title, ("below ", "from ")[big] + format_bytes(LARGE), f"{error:.0%}", str(n))
             for e, c, big, error, n in per_kind.itertuples(index=False)],
        ),
        Table(
            "Held-out error of each algorithm",
            ("collective", "algorithm", "median error", "largest"),
            [(str(k[0]), str(k[1]), f"{one.median():.0%}", f"{one.max():.0%}") for k, one in by_algorithm],
            folded=True,
        ),
    ]  # fmt: skip
    return Section(title=TITLE, words=words, charts={"model": chart(rows)}, tables=tables)


def chart(rows: pd.DataFrame) -> Any:
    """Measured over predicted, a point per row; held-out rows are filled."""
    import altair as alt

    told = rows[["median", "fitted_seconds", "contender", "collective", "msg_bytes", "held_out"]]
    told = told[told["fitted_seconds"] > 0]
    points = alt.Chart(told).mark_point().encode(
        alt.X("fitted_seconds:Q", title="predicted by the fit [s]").scale(type="log"),
        alt.Y("median:Q", title="measured [s]").scale(type="log"),
        color="collective:N",
        shape=alt.Shape("held_out:N", title="held out"),
        tooltip=["contender", "msg_bytes", "median", "fitted_seconds"],
    )  # fmt: skip
    ends = [float(told["median"].min()), float(told["median"].max())]
    line = alt.Chart(pd.DataFrame({"x": ends})).mark_line(color="#000").encode(x="x:Q", y="x:Q")
    title = "Times predicted by a fit to every second size, and measured"
    return (line + points).properties(width=640, height=380, title=title)
