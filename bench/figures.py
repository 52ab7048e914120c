"""The charts of a report: one function each, from a panel of the summary to an Altair chart.

A panel is what differs in size only. Lines join measured points of one contender; intervals are 95 %.
Nothing is averaged over sizes, and what is missing is not drawn.
"""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np
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
SECONDS = (
    "datum.value < 0.9e-6 ? format(datum.value * 1e9, '~r') + ' ns' : "
    "datum.value < 0.9e-3 ? format(datum.value * 1e6, '~r') + ' µs' : "
    "datum.value < 0.9 ? format(datum.value * 1e3, '~r') + ' ms' : format(datum.value, '~r') + ' s'"
)
_HOVER = (
    ("contender:N", "contender"), ("size:N", "size"), ("time:N", "time"), ("interval:N", "95 % interval"),
    ("ratio:Q", "time / builtin"), ("ratio_text:N", "95 % interval of it"), ("verdict:N", "verdict"),
    ("leaning:N", "leaning"), ("algbw:Q", "algbw [GB/s]"), ("busbw:Q", "busbw [GB/s]"), ("p10:N", "p10"),
    ("p90:N", "p90"), ("p99:N", "p99"), ("samples:Q", "samples"), ("launches:Q", "launches"),
)  # fmt: skip
_DRAWN = [
    "contender", "msg_bytes", "size", "median", "median_low", "median_high", "time", "interval",
    "ratio", "ratio_text", "verdict", "leaning", "speedup", "speedup_low", "speedup_high", "algbw", "busbw",
    "p10", "p90", "p99", "samples", "launches", "best_own",
]  # fmt: skip


def drawable(panel: pd.DataFrame) -> pd.DataFrame:
    """What a logarithmic chart can show (good, timed, not empty), with texts for hovering."""
    data = panel[(panel["status"] == "ok") & panel["median"].notna() & (panel["msg_bytes"] > 0)].copy()
    ratios = data[["ratio", "ratio_low", "ratio_high"]].astype(float)
    for name in ("p10", "p90", "p99"):
        data[name] = data[name].map(format_seconds)
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


def colours(order: list[str]) -> alt.Color:
    """A colour for each contender, with a legend."""
    own = iter(_COLOURS * (1 + len(order) // len(_COLOURS)))
    shades = [_MPI_COLOURS[name] if name in _MPI_COLOURS else next(own) for name in order]
    return alt.Color(
        "contender:N",
        title=None,
        sort=order,
        scale=alt.Scale(domain=order, range=shades),
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


def domain_of(values: pd.Series, *more: float) -> list[float]:
    """An axis by the points alone: a wide interval may leave the chart, but must not flatten it."""
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
    """Points, lines between them and intervals; clicks on the legend choose whose are shown."""
    chosen = alt.selection_point(name="shown", fields=["contender"], bind="legend", toggle="true")
    base = alt.Chart(data).encode(x=axis_of_bytes(data), color=colours(order)).transform_filter(chosen)
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
    scale = alt.Scale(type="log", domain=domain_of(data["median"]), nice=False)
    y = alt.Y("median:Q", title="time", scale=scale, axis=alt.Axis(labelExpr=SECONDS))
    chart = alt.layer(*_lines(data, contender_order(panel), y, ("median_low", "median_high")))
    return titled(
        chart, f"Time: {title}", "slowest rank, median over launches; bars: 95 % interval of the median"
    )


def speedup(panel: pd.DataFrame, title: str) -> Any:
    """How many times faster than the builtin each contender is, by size; above the line wins."""
    data = drawable(panel[panel["contender"] != BASELINE])
    scale = alt.Scale(type="log", base=2, domain=domain_of(data["speedup"], 1.0), nice=False)
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
    """Bandwidth by size, as nccl-tests define it: busbw, or algbw at the reader's choice."""
    data = drawable(panel)
    which = alt.param(
        name="which", value="busbw", bind=alt.binding_radio(options=["busbw", "algbw"], name="bandwidth: ")
    )
    domain = domain_of(pd.concat([data["busbw"], data["algbw"]]))
    y = alt.Y("bandwidth:Q", title="GB/s", axis=alt.Axis(format=".3~g"),
              scale=alt.Scale(type="log", domain=domain, nice=False))  # fmt: skip
    lines = _lines(data[data["busbw"].notna()], contender_order(panel), y, None)
    chosen = [line.transform_calculate(bandwidth="datum[which]") for line in lines]
    return titled(
        alt.layer(*chosen).add_params(which),
        f"Bandwidth: {title}",
        "algbw = bytes / time; busbw = algbw × the collective's factor (nccl-tests); 1 GB = 1e9 bytes",
    )


def distribution(samples: pd.DataFrame, panel: pd.DataFrame, title: str) -> Any:
    """How the calls' times are distributed at one size, of the reader's choice, cumulative."""
    data = quantiles(samples)
    sizes = list(dict.fromkeys(data.sort_values("msg_bytes", kind="stable")["size"]))
    size = alt.param(name="chosen_size", value=sizes[len(sizes) // 2],
                     bind=alt.binding_select(options=sizes, name="message size: "))  # fmt: skip
    x = alt.X("seconds:Q", title="time", scale=alt.Scale(type="log", nice=False, padding=8),
              axis=alt.Axis(labelExpr=SECONDS))  # fmt: skip
    y = alt.Y("share:Q", title="share of calls not slower", axis=alt.Axis(format="%"))
    chosen = alt.selection_point(name="shown", fields=["contender"], bind="legend", toggle="true")
    lines = (
        alt.Chart(data)
        .transform_filter("datum.size == chosen_size")
        .transform_filter(chosen)
        .mark_line(interpolate="step-after", strokeWidth=1.6)
        .encode(x=x, y=y, color=colours(contender_order(panel)), order="share:Q",
                tooltip=["contender:N", "size:N", alt.Tooltip("share:Q", format=".0%"), "time:N"])
        .add_params(size, chosen)
    )  # fmt: skip
    return titled(
        lines, f"Distribution: {title}", "cumulative, timed calls of all launches; choose the size below"
    )


def quantiles(samples: pd.DataFrame) -> pd.DataFrame:
    """Of each contender and size, the times below which given shares of the good timed calls lie."""
    left_out = samples["warmup"].fillna(True).astype(bool) | samples["late"].fillna(False).astype(bool)
    good = samples[samples["status"].eq("ok") & ~left_out & samples["msg_bytes"].gt(0)]
    shares = np.array([0, 0.01, *(k / 20 for k in range(1, 20)), 0.99, 1])
    grouped = good.groupby(["contender", "size", "msg_bytes"], sort=False)["seconds"]
    data = grouped.quantile(shares).rename_axis([*grouped.keys, "share"]).reset_index()
    data["seconds"] = data["seconds"].map(lambda value: float(f"{value:.4g}"))
    data["time"] = data["seconds"].map(format_seconds)
    return data


def heatmap(panel: pd.DataFrame, title: str) -> Any:
    """Time relative to the builtin for each contender and size; the best own one is framed."""
    data = drawable(panel).sort_values("msg_bytes", kind="stable")
    data = data[data["ratio"].notna()].copy()
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


def overview(cells: pd.DataFrame) -> Any:
    """Who wins in every case: rows are collectives and ranks, columns sizes, colours winners.

    `cells` has the columns row, size, msg_bytes, winner, text, sure, and those of the hover.
    """
    sizes = list(dict.fromkeys(cells.sort_values("msg_bytes", kind="stable")["size"]))
    rows = list(dict.fromkeys(cells["row"]))
    fixed = {BASELINE: "#1c2430", "tie": "#b9c0c9", "no verdict": "#f1f2f4"}
    own = [name for name in dict.fromkeys(cells["winner"]) if name not in fixed]
    order = [*own, *(name for name in fixed if name in set(cells["winner"]))]
    shades = iter(_COLOURS * (1 + len(own) // len(_COLOURS)))
    colours = [fixed[name] if name in fixed else next(shades) for name in order]
    base = alt.Chart(cells).encode(
        x=alt.X("size:N", sort=sizes, title="message size", axis=alt.Axis(labelAngle=-45)),
        y=alt.Y("row:N", sort=rows, title=None, axis=alt.Axis(labelLimit=420)),
    )
    rectangles = base.mark_rect(stroke="#fff", strokeWidth=1).encode(
        color=alt.Color("winner:N", title="winner", sort=order, scale=alt.Scale(domain=order, range=colours),
                        legend=alt.Legend(labelLimit=260, symbolLimit=0)),
        opacity=alt.condition("datum.sure", alt.value(1.0), alt.value(0.55)),
        tooltip=[alt.Tooltip(f"{name}:N", title=title) for name, title in (
            ("row", "case"), ("size", "size"), ("winner", "winner"), ("contender", "best own"),
            ("time", "its time"), ("builtin", "builtin"), ("ratio_text", "ratio"), ("verdict", "verdict"),
            ("why", "why undecided"))],
    )  # fmt: skip
    dark = alt.condition("datum.dark && datum.sure", alt.value("#fff"), alt.value("#1c2430"))
    texts = base.mark_text(fontSize=10).encode(text="text:N", color=dark)
    subtitle = "number: best own time / builtin's; pale and with “?”: not decided, the colour is its leaning"
    return titled(rectangles + texts, "Who wins where", subtitle, alt.Step(46), alt.Step(26))


def topology(cells: pd.DataFrame, title: str) -> Any:
    """Median time by where the ranks were, at a size that the reader chooses.

    `cells` has the columns where, size, msg_bytes, contender, median, median_low, median_high, time.
    """
    sizes = list(dict.fromkeys(cells.sort_values("msg_bytes", kind="stable")["size"]))
    size = alt.param(name="chosen_size", value=sizes[len(sizes) // 2],
                     bind=alt.binding_select(options=sizes, name="message size: "))  # fmt: skip
    base = (
        alt.Chart(cells)
        .transform_filter("datum.size == chosen_size")
        .encode(
            x=alt.X("where:N", sort=list(dict.fromkeys(cells["where"])),
                    title="ranks = nodes × ranks per node", axis=alt.Axis(labelAngle=-30, labelLimit=220)),
            color=colours(contender_order(cells)),
        )
    )  # fmt: skip
    scale = alt.Scale(type="log", nice=False, padding=10)
    y = alt.Y("median:Q", title="time", scale=scale, axis=alt.Axis(labelExpr=SECONDS))
    shift = alt.XOffset("contender:N", sort=contender_order(cells))
    points = base.mark_point(filled=True, size=60).encode(y=y, xOffset=shift, tooltip=[
        "where:N", "contender:N", "size:N", "time:N", "launches:Q"])  # fmt: skip
    bars = base.mark_rule().encode(y="median_low:Q", y2="median_high:Q", xOffset=shift)
    subtitle = "median over launches; bars: 95 % interval; choose the size below"
    return titled((bars + points).add_params(size), f"Topology: {title}", subtitle)


FIGURES = {"winners": heatmap, "latency": latency, "speedup": speedup, "bandwidth": bandwidth}
