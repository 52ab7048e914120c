"""`report.html`: one file that holds everything, charts and their program included; needs no network."""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from typing import Any

import altair as alt
import jinja2
import vl_convert
from markupsafe import Markup

from mpicoll.bench.grids import samples_grid, summary_grid
from mpicoll.bench.records import replace_file
from mpicoll.bench.sections import Loaded, Section
from mpicoll.bench.texts import missing, text_of, time_of

_TEMPLATES = Path(__file__).with_name("templates")
VEGA_LITE = ".".join(alt.SCHEMA_VERSION.lstrip("v").split(".")[:2])  # the version that Altair writes for
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
    replace_file(path, text)


def specifications(sections: list[Section]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The charts by the id of their place in the page, and the data sets that they share, by name."""
    specs: dict[str, Any] = {}
    datasets: dict[str, Any] = {}
    for part in (part for section in sections for part in section.walk()):
        for name, chart in part.charts.items():
            spec = specification(chart)
            own = spec.pop("datasets", {})
            spec["usermeta"] = {**spec.get("usermeta", {}), "datasets": list(own)}
            datasets |= {key: [_without_nan(row) for row in rows] for key, rows in own.items()}
            specs[f"{part.slug}-{name}"] = spec
    return specs, datasets


def specification(chart: Any) -> dict[str, Any]:
    """A chart as Vega-Lite, with however many rows."""
    with alt.data_transformers.enable("default", max_rows=None):
        return dict(chart.to_dict())


def write_figures(section: Section, folder: Path) -> None:
    """Each chart of a section and its parts as SVG, and that as PNG."""
    for part in section.walk():
        for name, chart in part.charts.items():
            svg = vl_convert.vegalite_to_svg(specification(chart), VEGA_LITE)
            replace_file(folder / f"{name}-{part.slug}.svg", svg)
            replace_file(folder / f"{name}-{part.slug}.png", vl_convert.svg_to_png(svg, scale=2))


def _without_nan(row: dict[str, Any]) -> dict[str, Any]:
    """Missing values as null, which JSON knows."""
    return {key: None if missing(value) else value for key, value in row.items()}


def as_json(content: Any) -> Markup:
    """As JSON, safe inside a script element."""
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return Markup(text.replace("<", "\\u003c"))


def _part(name: str) -> Markup:
    return Markup((_TEMPLATES / name).read_text(encoding="utf-8"))


@functools.cache
def program() -> Markup:
    """Vega, Vega-Lite and Vega-Embed as one script; putting it together takes seconds."""
    bundle = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", VEGA_LITE)
    return Markup(bundle.replace("</script", "<\\/script"))
