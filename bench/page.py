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

from mpicoll.bench.frame import Results
from mpicoll.bench.sizes import format_seconds
from mpicoll.bench.texts import interval_of, number_of, text_of, time_of

_TEMPLATES = Path(__file__).with_name("templates")
_SUMMARY_COLUMNS = (
    "contender", "size", "median", "median_low", "median_high", "p10", "p90",
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


def write(
    path: Path,
    results: Results,
    summary: pd.DataFrame,
    sections: list[dict[str, Any]],
    warnings: list[str],
) -> None:
    """Render the page."""
    loader = jinja2.FileSystemLoader(_TEMPLATES)
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined,
                                     trim_blocks=True, lstrip_blocks=True)  # fmt: skip
    environment.filters |= {"time": time_of, "number": number_of, "text": text_of}
    environment.globals |= {"interval": interval_of}
    text = environment.get_template("report.html.j2").render(
        sections=[_section(section, summary) for section in sections],
        warnings=warnings,
        launches=[
            (Path(name), run, launch) for name, run in results.runs.items() for launch in run["launches"]
        ],
        environments=list(results.environments),
        cases=sum(section["table"].shape[0] for section in sections),
        samples=len(results.samples),
        columns=_SUMMARY_COLUMNS,
        script=program(),
    )
    path.write_text(text, encoding="utf-8")


def _section(section: dict[str, Any], summary: pd.DataFrame) -> dict[str, Any]:
    """A section with its charts as JSON and its rows as texts."""
    key = section["key"]
    mask = pd.Series(True, index=summary.index)
    for name, value in key.items():
        mask &= summary[name].isna() if pd.isna(value) else summary[name].eq(value)
    rows = [
        {name: _cell(name, row[name]) for name in _SUMMARY_COLUMNS if name in row}
        for row in summary[mask].to_dict("records")
    ]
    return {
        **section,
        "winners": section["table"].to_dict("records"),
        "rows": rows,
        "specs": {name: as_json(chart) for name, chart in section["charts"].items()},
    }


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
