"""The charts on overlap: a step's time by mode, by bucket size, and as a timeline. All times in ms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import pandas as pd

from mpicoll.bench.figures import WIDTH, axis_of_bytes, titled

ANY = "any bucket in flight"
_ROWS = 40  # of a timeline
_KINDS = {
    "forward": "#97bbf5", "backward": "#4269d0", "update": "#6cc5b0", "launch": "#efb118", "wait": "#ff725c",
    "bucket in flight": "#3ca951",
}  # fmt: skip


def steps(bars: pd.DataFrame, title: str) -> Any:
    """The median of every mode, with its interval."""
    base = alt.Chart(bars).encode(y=alt.Y("mode:N", sort=None, title=None, axis=alt.Axis(labelLimit=260)))
    chart = base.mark_bar(color="#97bbf5").encode(
        x=alt.X("ms:Q", title="ms a step", scale=alt.Scale(zero=True)),
        tooltip=["mode:N", alt.Tooltip("ms:Q", format=".1f"), alt.Tooltip("low:Q", format=".1f"),
                 alt.Tooltip("high:Q", format=".1f")],
    )  # fmt: skip
    rules = base.mark_rule(strokeWidth=2).encode(x="low:Q", x2="high:Q")
    return titled(chart + rules, title, "time of a step; lines: 95 % interval", height=30 * len(bars))


def buckets(curve: pd.DataFrame, compute: float, best: tuple[int, int, int] | None, title: str) -> Any:
    """Steps by bucket size, with the recommended one and its interval, if there is one."""
    colours = {
        "overlapped": "#4269d0", "communication only": "#ff725c", "model": "#97bbf5",
        "model + CPU": "#4269d0", "bound": "#8a8a8a",
    }  # fmt: skip
    data = curve.assign(drawn=curve["mode"].isin(["overlapped", "communication only"]))
    colour = alt.Color("mode:N", scale=alt.Scale(domain=list(colours), range=list(colours.values())),
                       legend=alt.Legend(title=None, symbolType="stroke"))  # fmt: skip
    dashed = alt.StrokeDash(
        "drawn:N", scale=alt.Scale(domain=[True, False], range=[[1, 0], [5, 4]]), legend=None
    )
    base = alt.Chart(data).encode(x=axis_of_bytes(data, "bucket_bytes", "bucket size"), color=colour)
    y = alt.Y("ms:Q", title="ms a step", scale=alt.Scale(zero=True))
    marks = []
    if best is not None:
        interval = pd.DataFrame([{"low": best[1], "high": best[2], "best": best[0]}])
        marks = [
            alt.Chart(interval).mark_rect(opacity=0.12, color="#3ca951").encode(x="low:Q", x2="high:Q"),
            alt.Chart(interval).mark_rule(color="#3ca951", strokeWidth=2).encode(x="best:Q"),
        ]
    floor = alt.Chart(pd.DataFrame([{"ms": compute}])).mark_rule(strokeDash=[2, 3]).encode(y="ms:Q")
    layers = [
        *marks, floor,
        base.mark_line().encode(y=y, strokeDash=dashed),
        base.mark_rule().encode(y="low:Q", y2="high:Q"),
        base.transform_filter("datum.drawn").mark_point(filled=True, size=34).encode(y=y),
    ]  # fmt: skip
    told = "dotted: computing alone"
    told += "; green: recommended, and its 95 % interval" if best else "; no size is recommended"
    return titled(alt.layer(*layers), title, told)


def timeline(events: Sequence[dict[str, Any]], title: str) -> Any:
    """What rank 0 did in the step nearest to the median, for each mode that a trace was kept of."""
    titles = {e["pid"]: e["args"]["name"].partition(": ")[2] for e in events if e["name"] == "process_name"}
    data = pd.DataFrame([_drawn(e, titles[e["pid"]]) for e in events if e["ph"] == "X"])
    end = float(data["end"].max())
    charts = [_timeline_of(part, str(name), end) for name, part in data.groupby("mode", sort=False)]
    told = f"rank 0, the step nearest to the median; a gap in the row '{ANY}' is a network without work"
    return titled(alt.vconcat(*charts).resolve_scale(color="shared"), title, told, width=None, height=None)


def _drawn(event: dict[str, Any], mode: str) -> dict[str, Any]:
    kind = event["name"].partition(" ")[0]
    kind = {"ready": "launch", "bucket": "bucket in flight"}.get(kind, kind)
    begin = event["ts"] / 1e3
    return {
        "mode": mode, "kind": kind, "name": event["name"], "begin": begin, "end": begin + event["dur"] / 1e3,
        "row": event["cat"] if event["cat"] in ("program", "device") else event["name"],
    }  # fmt: skip


def joined(data: pd.DataFrame) -> pd.DataFrame:
    """Rows of a mode, and before its buckets one for the times in which any bucket is in flight."""
    flights = data[data["kind"] == "bucket in flight"].sort_values("begin")
    if flights.empty:
        return data
    first = {str(name): value for name, value in flights.iloc[0].items()}
    spans: list[dict[str, Any]] = []
    for begin, end in zip(flights["begin"], flights["end"], strict=True):
        if spans and begin <= spans[-1]["end"]:
            spans[-1]["end"] = max(spans[-1]["end"], end)
        else:
            spans.append({**first, "name": ANY, "row": ANY, "begin": begin, "end": end})
    return pd.concat([data[data["kind"] != "bucket in flight"], pd.DataFrame(spans), flights])


def _timeline_of(data: pd.DataFrame, name: str, end: float) -> Any:
    data = joined(data)
    rows = list(dict.fromkeys(data["row"]))
    shown = rows if len(rows) <= _ROWS else [*rows[: _ROWS // 2], *rows[-_ROWS // 2 :]]
    if len(shown) < len(rows):  # hundreds of tiny buckets are no picture
        name += f" (without {len(rows) - len(shown)} rows of buckets in the middle)"
    data = data[data["row"].isin(shown)]
    return (
        alt.Chart(data, title=alt.TitleParams(name, anchor="start", fontSize=12))
        .mark_bar(height=alt.RelativeBandSize(0.8))
        .encode(
            x=alt.X("begin:Q", title="ms from the beginning of the step", scale=alt.Scale(domain=[0, end])),
            x2="end:Q",
            y=alt.Y("row:N", sort=shown, title=None, axis=alt.Axis(labelLimit=200, labelFontSize=9)),
            color=alt.Color("kind:N", scale=alt.Scale(domain=list(_KINDS), range=list(_KINDS.values())),
                            legend=alt.Legend(title=None)),
            tooltip=["name:N", alt.Tooltip("begin:Q", format=".2f"), alt.Tooltip("end:Q", format=".2f")],
        )
        .properties(width=WIDTH, height=max(24, 12 * len(shown)))
    )  # fmt: skip
