"""Writes report.html: one self-contained page for folders of kvtwin plan, compare, sweep, simulate and run.

    python -m kvtwin.report_page OUT DIR...   replaces OUT. Equal folders and equal packages give equal bytes.

The page needs no network: Plotly's script comes from the installed Python package plotly. Without this package, the page
has static figures. Exit codes: 0 done, 1 the page cannot be written, 2 a folder cannot be read.
"""

import base64
import hashlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from kvtwin.charts import DARK, PAPER, RUN_STYLES, WIDTH, Chart, Table
from kvtwin.charts_interactive import plotly_figure
from kvtwin.charts_of_plans import Plan
from kvtwin.charts_static import draw_static
from kvtwin.errors import InputError
from kvtwin.report_plans import plan_section, plans_section
from kvtwin.report_runs import run_section, runs_section
from kvtwin.report_sections import Commands, Section
from kvtwin.report_settings import compare_section, sweep_section
from kvtwin.result_folders import has_cells, load_compare, load_run, load_sweep
from kvtwin.simulation import load_json

MAX_PAGE_BYTES = 8_000_000
VERDICT_EDGES = 46  # pixels of border and padding beside a figure of the verdict
KINDS = ("plan.json", "compare.json", "sweep.json", "report.json")  # a folder is of the first kind whose file it has


def sections_of(folders: Sequence[str]) -> list[Section]:
    sections, runs, plans = [], [], []
    names = unique_names(folders)
    for folder, name in zip(folders, names):
        kind = next((kind for kind in KINDS if (Path(folder) / kind).exists()), None)
        try:
            if kind == "plan.json":
                raw = load_json(Path(folder) / "plan.json")
                sections.append(plan_section(folder, raw))
                plans.append((name, Plan(folder, raw)))
            elif kind == "sweep.json" or (kind == "compare.json" and has_cells(folder)):
                sections.append(sweep_section(folder, load_sweep(folder)))
            elif kind == "compare.json":
                sections.append(compare_section(folder, load_compare(folder)))
            elif kind == "report.json":
                run = load_run(folder)
                sections.append(run_section(folder, run))
                runs.append((name, run))
            else:
                raise InputError(
                    f"{folder}: holds no {', '.join(KINDS[:-1])} or {KINDS[-1]}; give a folder that kvtwin plan, compare, sweep, simulate or run wrote"
                )
        except InputError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, StopIteration) as error:
            raise InputError(
                f"{Path(folder) / (kind or '')}: a member is absent or of the wrong type ({type(error).__name__}: {error})"
            ) from error
    if len(runs) > len(RUN_STYLES):
        raise InputError(f"{len(runs)} run folders; at most {len(RUN_STYLES)} can be side by side")
    beside = ([plans_section(plans)] if len(plans) > 1 else []) + ([runs_section(runs)] if len(runs) > 1 else [])
    return beside + sections


def unique_names(folders: Sequence[str]) -> list[str]:
    """Returns the name of each folder; the path as given where names are equal."""
    names = [Path(folder).resolve().name for folder in folders]
    return [name if names.count(name) == 1 else str(folder) for name, folder in zip(names, folders)]


# Draws the figures in the colours of the screen, light or dark. On paper a figure is light, and has the width of the paper.
# Adds the buttons that copy commands. Where the browser refuses to copy, the command is selected.
SCRIPT = """
"use strict";
const figures = JSON.parse(document.getElementById("figure-data").textContent);
// Without Plotly's button that sends a figure to a server.
const buttons = ["toImage", "zoomIn2d", "zoomOut2d", "resetScale2d"];
const config = {responsive: true, displaylogo: false, plotlyServerURL: "", modeBarButtons: [buttons]};
const dark = DARK_COLOURS;
const scheme = matchMedia("(prefers-color-scheme: dark)");
function recoloured(value) {
  if (typeof value === "string") return dark[value] ?? value;
  if (Array.isArray(value)) return value.map(recoloured);
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, recoloured(one)]));
}
function draw(onPaper) {
  for (const name of Object.keys(figures)) {
    const drawn = scheme.matches && !onPaper ? recoloured(figures[name]) : structuredClone(figures[name]);
    const place = document.getElementById(name);
    const width = PAPER_WIDTH - (place.closest(".verdict") ? VERDICT_EDGES : 0);
    // With both sizes set, Plotly leaves the size alone when the window changes.
    const size = onPaper ? {width, height: place.clientHeight, autosize: false} : {};
    Plotly.newPlot(name, drawn.data, {...drawn.layout, ...size}, config);
  }
  // The label and the table of a figure are its text: a screen reader leaves out the numbers of the axes.
  for (const drawing of document.querySelectorAll(".plot svg.main-svg")) drawing.setAttribute("aria-hidden", "true");
}
for (const block of document.querySelectorAll(".command")) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Copy";
  button.title = "Copy the command";
  button.addEventListener("click", async () => {
    const command = block.querySelector("pre");
    getSelection().selectAllChildren(command);
    try {
      await navigator.clipboard.writeText(command.textContent);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Selected";
    }
  });
  block.append(button);
}
draw();
scheme.addEventListener("change", () => draw());
addEventListener("beforeprint", () => draw(true));
addEventListener("afterprint", () => draw());
"""


def plotly_library() -> str | None:
    """Returns Plotly's script; None if the package plotly is not installed."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        return None
    return get_plotlyjs()


def digest(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def page(folders: Sequence[str]) -> str:
    import jinja2
    from markupsafe import Markup

    sections = sections_of(folders)
    library = plotly_library()
    charts = []
    for number, section in enumerate(sections, 1):
        section.name = f"section-{number}"
        for group in ("verdict", "parts"):
            kept = [(heading, [block for block in blocks if block]) for heading, blocks in getattr(section, group)]
            setattr(section, group, [(heading, blocks) for heading, blocks in kept if blocks])
        charts += section.charts()
    for number, chart in enumerate(charts, 1):
        chart.name = f"figure-{number}"
        if library is None:
            draw_static(chart)
    script = SCRIPT.replace("PAPER_WIDTH", str(WIDTH)).replace("VERDICT_EDGES", str(VERDICT_EDGES)).replace("DARK_COLOURS", json.dumps(DARK))
    data = json.dumps(
        {chart.name: plotly_figure(chart) for chart in charts} if library else {},
        allow_nan=False,
        separators=(",", ":"),
    )
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )
    environment.tests |= {
        "table": lambda block: isinstance(block, Table),
        "chart": lambda block: isinstance(block, Chart),
        "commands": lambda block: isinstance(block, Commands),
        "sentences": lambda block: isinstance(block, list),
    }
    # In a script element, "</script" ends the script and "<!--" changes how the rest is read.
    library = library and library.replace("</script", "<\\/script").replace("<!--", "<\\!--")
    scripts = f"{digest(library)} {digest(script)}" if library else "'none'"
    trusted = Markup
    return environment.get_template("report.html.jinja").render(
        title=sections[0].title if len(sections) == 1 else "kvtwin report: " + ", ".join(unique_names(folders)),
        sections=sections,
        may_break=trusted(".<wbr>"),
        static=library is None,
        library=trusted(library or ""),
        script=trusted(script),
        dark_paper=trusted(DARK[PAPER]),
        data=trusted(data.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")),
        content_policy=f"default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'",
    )


def main(arguments: list[str]) -> int:
    if len(arguments) < 2:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    out, folders = Path(arguments[0]), arguments[1:]
    unfinished = out.with_name(f"{out.name}.unfinished")
    try:
        text = page(folders).encode("utf-8", errors="replace")
        if len(text) > MAX_PAGE_BYTES:
            raise InputError(f"the page would have {len(text):,} bytes, more than {MAX_PAGE_BYTES:,}; give fewer folders")
        unfinished.write_bytes(text)
        os.replace(unfinished, out)
        print(out)
    except InputError as error:
        print(f"kvtwin report: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        print(f"kvtwin report: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
