"""`report.html`: one file that holds everything, charts and their program included; needs no network."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import altair as alt
import jinja2
import vl_convert
from markupsafe import Markup

from mpicoll.bench.grids import samples_grid, summary_grid
from mpicoll.bench.sections import Loaded, Section
from mpicoll.bench.texts import missing, text_of, time_of

_TEMPLATES = Path(__file__).with_name("templates")
_MARKED = ("faster", "slower", "kept", "VIOLATED", "grave")  # cells that are given a colour


def write(path: Path, data: Loaded, sections: list[Section]) -> None:
    """Render the page."""
    loader = jinja2.FileSystemLoader(_TEMPLATES)
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined,
                                     trim_blocks=True, lstrip_blocks=True)  # fmt: skip
    environment.filters |= {"time": time_of, "text": text_of}
    specs, datasets = specifications(sections)
    samples, note = samples_grid(data.samples)
    scripts = {"specs": specs, "datasets": datasets, "samples-data": samples}
    scripts["summary-data"] = summary_grid(data.summary)
    text = environment.get_template("report.html.j2").render(
        sections=sections,
        launches=list(data.launches()),
        environments=list(data.results.environments),
        sample_note=note,
        links=[os.path.relpath(Path(source) / "samples.csv", path.parent) for source in data.runs],
        marked=_MARKED,
        data={name: as_json(content) for name, content in scripts.items()},
        program=program(),
        style=_part("style.css"),
        grid_script=_part("grid.js"),
        page_script=_part("page.js"),
    )
    path.write_text(text, encoding="utf-8")


def specifications(sections: list[Section]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The charts by the id of their place in the page, and the data sets that they share, by name."""
    specs: dict[str, Any] = {}
    datasets: dict[str, Any] = {}
    with alt.data_transformers.enable("default", max_rows=None):
        for part in (part for section in sections for part in section.walk()):
            for name, chart in part.charts.items():
                spec = chart.to_dict()
                own = spec.pop("datasets", {})
                spec["usermeta"] = {**spec.get("usermeta", {}), "datasets": list(own)}
                datasets |= {key: [_without_nan(row) for row in rows] for key, rows in own.items()}
                specs[f"{part.slug}-{name}"] = spec
    return specs, datasets


def _without_nan(row: dict[str, Any]) -> dict[str, Any]:
    """Missing values as null, which JSON knows."""
    return {key: None if missing(value) else value for key, value in row.items()}


def as_json(content: Any) -> Markup:
    """As JSON, safe inside a script element."""
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return Markup(text.replace("<", "\\u003c"))


def _part(name: str) -> Markup:
    return Markup((_TEMPLATES / name).read_text(encoding="utf-8"))


def program() -> Markup:
    """Vega, Vega-Lite and Vega-Embed as one script."""
    version = ".".join(alt.SCHEMA_VERSION.lstrip("v").split(".")[:2])
    bundle = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", version)
    return Markup(bundle.replace("</script", "<\\/script"))
