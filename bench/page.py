"""`report.html`: one file that holds everything, charts and their program included; needs no network."""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

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


def write(path: Path, data: Loaded, sections: list[Section], charts: list[Drawn]) -> None:
    """Render the page, given the charts of its sections (`drawn`)."""
    loader = jinja2.FileSystemLoader(_TEMPLATES)
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined,
                                     trim_blocks=True, lstrip_blocks=True)  # fmt: skip
    environment.filters |= {"time": time_of, "text": text_of}
    specs, datasets = specifications(charts)
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


def specifications(charts: list[Drawn]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The charts by the id of their place in the page, and the data sets that they share, by name."""
    specs: dict[str, Any] = {}
    datasets: dict[str, Any] = {}
    for one in charts:
        own = one.spec.get("datasets", {})
        spec = {key: value for key, value in one.spec.items() if key != "datasets"}
        spec["usermeta"] = {**spec.get("usermeta", {}), "datasets": list(own)}
        datasets |= {key: [_without_nan(row) for row in rows] for key, rows in own.items()}
        specs[f"{one.place}-{one.name}"] = spec
    return specs, datasets


class Drawn(NamedTuple):
    """A chart as Vega-Lite, its name, and the address of the part that it is in."""

    place: str
    name: str
    spec: dict[str, Any]


def drawn(sections: list[Section]) -> list[Drawn]:
    """All charts, with however many rows. Altair checks each against its schema, which takes a while."""
    with alt.data_transformers.enable("default", max_rows=None):
        return [
            Drawn(part.slug, name, chart.to_dict())
            for section in sections
            for part in section.walk()
            for name, chart in part.charts.items()
        ]


def write_figures(charts: list[Drawn], folder: Path) -> None:
    """Each chart as SVG, and that as PNG."""
    for one in charts:
        svg = vl_convert.vegalite_to_svg(one.spec, VEGA_LITE)
        replace_file(folder / f"{one.name}-{one.place}.svg", svg)
        replace_file(folder / f"{one.name}-{one.place}.png", vl_convert.svg_to_png(svg, scale=2))


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
