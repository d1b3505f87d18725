"""One HTML file that holds all it needs: it asks no network for anything, and runs no script but its own."""

import base64
import functools
import hashlib
import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from zeno.records.ledger import ledger_of
from zeno.report.page.folders import Seen
from zeno.report.page.pack import CELLS, Json, bin_of, figures, pack

STYLES = ("uplot/uPlot.min.css", "page.css")
SCRIPTS = ("uplot/uPlot.iife.min.js", "data.js", "words.js", "charts.js", "map.js", "tables.js", "page.js")


def build(runs: Sequence[Seen]) -> str:
    """The page of these runs."""
    return page([packed_run(run, CELLS // max(1, len(runs))) for run in runs])


def packed_run(run: Seen, cells: int = CELLS) -> Json:
    """A whole run as the page takes it."""
    return {
        **about(run),
        **pack(run.records, run.workers, bin_of(len(run.records), run.workers, cells)),
        **figures(run.records, ledger_of(run.records, run.workers)),
    }


def about(run: Seen) -> Json:
    return {"name": run.name, "settings": run.settings, "planned": run.planned, "notes": run.notes}


def page(runs: Sequence[Json], every: float | None = None) -> str:
    """The page; it asks for what is new `every` so many seconds, if it is served."""
    style = "\n".join(map(_asset, STYLES))
    script = "\n".join(map(_asset, SCRIPTS))
    parts = {
        "CSP": policy(live=every is not None),
        "STYLE": style,
        "SCRIPT": script,
        "DATA": escaped({"runs": list(runs), "every": every}),
    }
    html = _asset("page.html")
    for name, text in parts.items():  # each name once in the file, before what the last of them brings in
        before, after = html.split(f"{{{{{name}}}}}", 1)
        html = before + text + after
    return html


@functools.cache
def policy(live: bool) -> str:
    """The content security policy: scripts and styles by their hash, and connections to nobody but the live view."""
    whom = "'self'" if live else "'none'"
    style, script = "\n".join(map(_asset, STYLES)), "\n".join(map(_asset, SCRIPTS))
    return (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data: blob:; "
        f"connect-src {whom}; base-uri 'none'; form-action 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"  # nor does any text become markup
    )


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@functools.cache
def _asset(name: str) -> str:
    return files("zeno.page").joinpath(name).read_text(encoding="utf-8").replace("\r\n", "\n")


ESCAPES = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


def escaped(value: Any) -> str:
    """JSON that cannot end the element it stands in."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).translate(ESCAPES)
