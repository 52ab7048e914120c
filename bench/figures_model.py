"""The chart of model and bound under the measurements."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from mpicoll.bench.figures import (
    SECONDS,
    axis_of_bytes,
    colours,
    contender_order,
    domain_of,
    drawable,
    titled,
)
from mpicoll.bench.sizes import format_seconds

_TEXTS = ("measured", "interval", "model", "bound", "error")
_TITLES = ("measured", "95 % interval", "model", "bound", "model/measured − 1")


def by_size(panel: pd.DataFrame, title: str) -> Any:
    """Measured medians as points, the model of each contender as a line, the bound of all dashed.

    Clicks on the legend choose whose points and lines are shown.
    """
    data = drawable(panel).join(panel[["model_seconds", "bound_seconds", "residual"]].astype(float))
    for name, column in (("measured", "median"), ("model", "model_seconds"), ("bound", "bound_seconds")):
        data[name] = data[column].map(format_seconds, na_action="ignore").fillna("none")
    data["error"] = [f"{value:+.0%}" if value == value else "none" for value in data["residual"]]
    bound = data.groupby("msg_bytes", as_index=False)[["bound_seconds", "size", "bound"]].first()
    values = pd.concat([data["median"], data["model_seconds"], data["bound_seconds"]])
    y = {"title": "time", "axis": alt.Axis(labelExpr=SECONDS),
         "scale": alt.Scale(type="log", domain=domain_of(values), nice=False)}  # fmt: skip
    hover = [alt.Tooltip(f"{field}:N") for field in ("contender", "size")]
    hover += [alt.Tooltip(f"{f}:N", title=t) for f, t in zip(_TEXTS, _TITLES, strict=True)]
    chosen = alt.selection_point(name="shown", fields=["contender"], bind="legend", toggle="true")
    base = (
        alt.Chart(data)
        .encode(x=axis_of_bytes(data), color=colours(contender_order(panel)))
        .transform_filter(chosen)
    )
    kinds = alt.StrokeDash(
        "kind:N",
        title=None,
        scale=alt.Scale(domain=["model", "bound"], range=[[1, 0], [6, 4]]),
        legend=alt.Legend(symbolType="stroke", symbolSize=400, symbolStrokeColor="#333"),
    )
    modelled = base.transform_filter("isValid(datum.model_seconds)").transform_calculate(kind="'model'")
    lines = modelled.mark_line(strokeWidth=1.3, opacity=0.75, clip=True)
    least = (
        alt.Chart(bound).transform_calculate(kind="'bound'").mark_line(strokeWidth=2, color="#333", clip=True)
    )
    rules = base.mark_rule(strokeWidth=1.2, clip=True)
    points = base.mark_point(filled=True, size=38, clip=True, shape="circle")
    chart = alt.layer(
        least.encode(x=axis_of_bytes(data), y=alt.Y("bound_seconds:Q", **y), strokeDash=kinds,
                     tooltip=["size:N", "bound:N"]),
        lines.encode(y=alt.Y("model_seconds:Q", **y), strokeDash=kinds, detail="contender:N"),
        rules.encode(y="median_low:Q", y2="median_high:Q"),
        points.encode(y=alt.Y("median:Q", **y), tooltip=hover).add_params(chosen),
    )  # fmt: skip
    return titled(
        chart,
        f"Model and bound: {title}",
        "points: measured, with 95 % intervals; lines: the model, calibrated; dashed: the bound",
    )
