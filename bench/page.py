"""`report.html`: one file that holds everything, charts and their program included; needs no network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import altair as alt
import jinja2
import pandas as pd
import vl_convert
from markupsafe import Markup

from mpicoll.bench.sections import Loaded, Section
from mpicoll.bench.sizes import format_seconds
from mpicoll.bench.texts import number_of, text_of, time_of

_TEMPLATES = Path(__file__).with_name("templates")
_SUMMARY_COLUMNS = (
    "collective", "ranks", "contender", "size", "median", "median_low", "median_high", "p10", "p90",
    "min", "skew", "first_seconds", "build_seconds", "samples", "launches", "outliers",
    "ratio", "ratio_low", "ratio_high", "verdict", "algbw", "busbw", "rounds",
    "channels", "depth", "params", "status", "reason",
)  # fmt: skip
_AS_TIME = {
    "median",
    "median_low",
    "median_high",
    "p10",
    "p90",
    "min",
    "skew",
    "first_seconds",
    "build_seconds",
}


def write(path: Path, data: Loaded, sections: list[Section], warnings: list[str]) -> None:
    """Render the page."""
    loader = jinja2.FileSystemLoader(_TEMPLATES)
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined,
                                     trim_blocks=True, lstrip_blocks=True)  # fmt: skip
    environment.filters |= {"time": time_of, "number": number_of, "text": text_of}
    specs = {
        f"{part.slug}-{name}": as_json(chart)
        for section in sections
        for part in section.walk()
        for name, chart in part.charts.items()
    }
    text = environment.get_template("report.html.j2").render(
        sections=sections,
        specs=specs,
        warnings=warnings,
        launches=[(Path(source), launch) for source, launch in data.launches()],
        environments=list(data.results.environments),
        samples=len(data.samples),
        columns=_SUMMARY_COLUMNS,
        rows=[
            {name: _cell(name, row[name]) for name in _SUMMARY_COLUMNS if name in row}
            for row in data.summary.to_dict("records")
        ],
        script=program(),
    )
    path.write_text(text, encoding="utf-8")


def _cell(name: str, value: Any) -> str:
    if value is None or pd.isna(value):
        return ""
    if name in _AS_TIME:
        return format_seconds(value)
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def as_json(chart: Any) -> Markup:
    """A chart's specification, safe inside a script element."""
    with alt.data_transformers.enable("default", max_rows=None):
        return Markup(json.dumps(chart.to_dict()).replace("<", "\\u003c"))


def program() -> Markup:
    """Vega, Vega-Lite and Vega-Embed as one script."""
    version = ".".join(alt.SCHEMA_VERSION.lstrip("v").split(".")[:2])
    return Markup(
        vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", version).replace(
            "</script", "<\\/script"
        )
    )
