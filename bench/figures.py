"""The charts of a report: one function each, from a panel of the summary to an Altair chart.

A panel is what differs in size only. Lines join measured points of one contender; intervals are 95 %.
Nothing is averaged over sizes, and what is missing is not drawn.
"""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from mpicoll.bench.sizes import format_seconds
from mpicoll.bench.stats import BASELINE

WIDTH, HEIGHT = 640, 380
_MPI_COLOURS = {BASELINE: "#000000", "builtin_persistent": "#8a8a8a"}
# Twenty that can be told apart on white; own contenders take them in order.
_COLOURS = (
    "#4269d0", "#efb118", "#ff725c", "#3ca951", "#a463f2", "#6cc5b0", "#ff8ab7", "#9c6b4e", "#97bbf5",
    "#b8860b", "#8b0000", "#2f6f4f", "#5b2a86", "#1f9e9e", "#c71585", "#5c4033", "#7f9d3a", "#d2691e",
    "#4b5d67", "#b39ddb",
)  # fmt: skip
_BYTES = (
    "datum.value < 1024 ? datum.value + ' B' : datum.value < 1048576 ? datum.value / 1024 + ' KiB' : "
    "datum.value < 1073741824 ? datum.value / 1048576 + ' MiB' : datum.value / 1073741824 + ' GiB'"
)
_SECONDS = (
    "datum.value < 0.9e-6 ? format(datum.value * 1e9, '~r') + ' ns' : "
    "datum.value < 0.9e-3 ? format(datum.value * 1e6, '~r') + ' µs' : "
    "datum.value < 0.9 ? format(datum.value * 1e3, '~r') + ' ms' : format(datum.value, '~r') + ' s'"
)
_HOVER = (
    ("contender:N", "contender"), ("size:N", "size"), ("time:N", "time"), ("interval:N", "95 % interval"),
    ("ratio:Q", "time / builtin"), ("ratio_text:N", "95 % interval of it"), ("verdict:N", "verdict"),
    ("busbw:Q", "busbw [GB/s]"), ("samples:Q", "samples"), ("launches:Q", "launches"),
)  # fmt: skip
_DRAWN = [
    "contender", "msg_bytes", "size", "median", "median_low", "median_high", "time", "interval",
    "ratio", "ratio_text", "verdict", "speedup", "speedup_low", "speedup_high", "busbw",
    "samples", "launches", "best_own",
]  # fmt: skip


def drawable(panel: pd.DataFrame) -> pd.DataFrame:
    """What a logarithmic chart can show (good, timed, not empty), with texts for hovering."""
    data = panel[(panel["status"] == "ok") & panel["median"].notna() & (panel["msg_bytes"] > 0)].copy()
    ratios = data[["ratio", "ratio_low", "ratio_high"]].astype(float)
    data["time"] = data["median"].map(format_seconds)
    data["interval"] = [
        "none" if pd.isna(low) else f"{format_seconds(low)} to {format_seconds(high)}"
        for low, high in zip(data["median_low"], data["median_high"], strict=True)
    ]
    data["ratio_text"] = [
        "none" if pd.isna(low) else f"{low:.3g} to {high:.3g}"
        for low, high in zip(ratios["ratio_low"], ratios["ratio_high"], strict=True)
    ]
    data["speedup"] = 1 / ratios["ratio"]
    data["speedup_low"], data["speedup_high"] = 1 / ratios["ratio_high"], 1 / ratios["ratio_low"]
    return data.reindex(columns=_DRAWN)


def contender_order(panel: pd.DataFrame) -> list[str]:
    """MPI's own first, then the others as they were asked for."""
    names = list(dict.fromkeys(panel["contender"]))
    return [name for name in _MPI_COLOURS if name in names] + [n for n in names if n not in _MPI_COLOURS]


def _colour(order: list[str]) -> alt.Color:
    own = iter(_COLOURS * (1 + len(order) // len(_COLOURS)))
    colours = [_MPI_COLOURS[name] if name in _MPI_COLOURS else next(own) for name in order]
    return alt.Color(
        "contender:N",
        title=None,
        sort=order,
        scale=alt.Scale(domain=order, range=colours),
        legend=alt.Legend(symbolType="stroke", symbolStrokeWidth=3, labelLimit=320, symbolLimit=0),
    )


def axis_of_bytes(data: pd.DataFrame, column: str = "msg_bytes", title: str = "message size") -> alt.X:
    """A logarithmic axis of sizes."""
    sizes = sorted(set(data[column])) or [1]
    step = 16 if sizes[-1] >= sizes[0] << 12 else 4
    values = [sizes[0] * step**k for k in range(32) if sizes[0] * step**k <= sizes[-1]]
    return alt.X(
        f"{column}:Q",
        title=title,
        scale=alt.Scale(type="log", base=2, nice=False, padding=12),
        axis=alt.Axis(values=values, labelExpr=_BYTES, labelFlush=False),
    )


def _domain(values: pd.Series, *more: float) -> list[float]:
    """From the points alone: a wide interval may leave the chart, but must not flatten it."""
    known = [float(v) for v in values.dropna() if v > 0] + list(more)
    return [min(known) / 1.3, max(known) * 1.3] if known else [0.1, 10]


def _tooltip() -> list[alt.Tooltip]:
    return [
        alt.Tooltip(field, title=title, format=".3~g")
        if field.endswith("Q")
        else alt.Tooltip(field, title=title)
        for field, title in _HOVER
    ]


def _lines(
    data: pd.DataFrame, order: list[str], y: alt.Y, interval: tuple[str, str] | None
) -> list[alt.Chart]:
    """Points, lines between them and intervals; a click on the legend lets the others fade."""
    chosen = alt.selection_point(fields=["contender"], bind="legend", toggle="true")
    shown = alt.when(chosen).then(alt.value(1.0)).otherwise(alt.value(0.07))
    base = alt.Chart(data).encode(x=axis_of_bytes(data), color=_colour(order), opacity=shown)
    layers = [base.mark_line(strokeWidth=1.6, clip=True).encode(y=y)]
    if interval:
        low, high = interval
        layers.append(base.mark_rule(strokeWidth=1.2, clip=True).encode(y=f"{low}:Q", y2=f"{high}:Q"))
    points = base.mark_point(filled=True, size=34, clip=True, shape="circle")
    layers.append(points.encode(y=y, tooltip=_tooltip()).add_params(chosen))
    return layers


def titled(chart: Any, title: str, subtitle: str, width: Any = WIDTH, height: Any = HEIGHT) -> Any:
    """A chart with its heading; without width and height if these are None."""
    heading = alt.TitleParams(
        title, subtitle=subtitle, anchor="start", fontSize=15, subtitleColor="#555", offset=12
    )
    size = {} if width is None else {"width": width, "height": height}
    return (
        chart.properties(**size, title=heading)
        .configure_axis(gridColor="#e8e8e8", labelFontSize=11, titleFontSize=12)
        .configure_view(stroke="#ccc")
    )


def latency(panel: pd.DataFrame, title: str) -> Any:
    """Median time of each contender by size, both logarithmic."""
    data = drawable(panel)
    scale = alt.Scale(type="log", domain=_domain(data["median"]), nice=False)
    y = alt.Y("median:Q", title="time", scale=scale, axis=alt.Axis(labelExpr=_SECONDS))
    chart = alt.layer(*_lines(data, contender_order(panel), y, ("median_low", "median_high")))
    return titled(
        chart, f"Time: {title}", "slowest rank, median over iterations; bars: 95 % interval of the median"
    )


def speedup(panel: pd.DataFrame, title: str) -> Any:
    """How many times faster than the builtin each contender is, by size; above the line wins."""
    data = drawable(panel[panel["contender"] != BASELINE])
    scale = alt.Scale(type="log", base=2, domain=_domain(data["speedup"], 1.0), nice=False)
    y = alt.Y("speedup:Q", title="builtin's time / time", scale=scale, axis=alt.Axis(format=".3~g"))
    line = alt.Chart(pd.DataFrame({"one": [1.0]})).mark_rule(strokeWidth=2, color="#000").encode(y="one:Q")
    order = [name for name in contender_order(panel) if name != BASELINE]
    chart = alt.layer(line, *_lines(data, order, y, ("speedup_low", "speedup_high")))
    return titled(
        chart,
        f"Speed-up: {title}",
        "over MPI's own call, paired within launches; above 1: faster; bars: 95 % interval",
    )


def bandwidth(panel: pd.DataFrame, title: str) -> Any:
    """Bus bandwidth by size, as nccl-tests define it."""
    data = drawable(panel)
    data = data[data["busbw"].notna()]
    scale = alt.Scale(type="log", domain=_domain(data["busbw"]), nice=False)
    y = alt.Y("busbw:Q", title="busbw [GB/s]", scale=scale, axis=alt.Axis(format=".3~g"))
    chart = alt.layer(*_lines(data, contender_order(panel), y, None))
    return titled(
        chart, f"Bandwidth: {title}", "busbw = bytes / time × the collective's factor; 1 GB = 1e9 bytes"
    )


def heatmap(panel: pd.DataFrame, title: str) -> Any:
    """Time relative to the builtin for each contender and size; the best own one is framed."""
    data = drawable(panel).sort_values("msg_bytes", kind="stable")
    data = data[data["ratio"].notna()]
    data["text"] = data["ratio"].map(lambda r: f"{r:.2f}" if r < 10 else f"{r:.0f}")
    sizes = list(dict.fromkeys(data["size"]))
    base = alt.Chart(data).encode(
        x=alt.X("size:N", sort=sizes, title="message size", axis=alt.Axis(labelAngle=-45)),
        y=alt.Y("contender:N", sort=contender_order(panel), title=None, axis=alt.Axis(labelLimit=320)),
    )
    colour = alt.Color(
        "ratio:Q",
        title="time / builtin",
        legend=alt.Legend(format="~g", values=[0.25, 0.5, 1, 2, 4]),
        scale=alt.Scale(type="log", domain=[0.25, 1, 4], range=["#1a7f4b", "#f7f7f5", "#b2452f"], clamp=True),
    )
    cells = base.mark_rect(stroke="#fff", strokeWidth=0.5).encode(color=colour, tooltip=_tooltip())
    dark = alt.condition("datum.ratio < 0.36 || datum.ratio > 2.8", alt.value("#fff"), alt.value("#222"))
    text = base.mark_text(fontSize=9.5).encode(text="text:N", color=dark)
    frames = base.transform_filter("datum.best_own").mark_rect(
        filled=False, fillOpacity=0, stroke="#000", strokeWidth=1.8
    )
    subtitle = "time relative to MPI's own call (below 1: faster); framed: the best own one at each size"
    return titled(cells + text + frames, f"Who wins: {title}", subtitle, alt.Step(36), alt.Step(21))


FIGURES = {"winners": heatmap, "latency": latency, "speedup": speedup, "bandwidth": bandwidth}
