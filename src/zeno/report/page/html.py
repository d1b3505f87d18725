"""The page as one HTML file: it makes no network requests, and runs only its own script."""

import base64
import functools
import hashlib
import json
from collections.abc import Sequence
from importlib.resources import files

from zeno.report.page.pack import CELLS, Json, bin_of, packed_run
from zeno.report.run_view import RunView

STYLES = ("uplot/uPlot.min.css", "page.css")
SCRIPTS = ("uplot/uPlot.iife.min.js", "data.js", "words.js", "charts.js", "time.js", "map.js", "tables.js", "page.js")
ESCAPES = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}  # so that JSON cannot end its element


def build(runs: Sequence[RunView]) -> str:
    """The page of these runs."""
    cells = CELLS // max(1, len(runs))
    return page([packed_run(run, bin_of(len(run.records), run.workers, cells)) for run in runs])


def page(runs: Sequence[Json], every: float | None = None) -> str:
    """The page of packed runs; a page that is served requests new steps `every` so many seconds."""
    data = json.dumps({"runs": list(runs), "every": every}, allow_nan=False, separators=(",", ":"))
    parts = {
        "CSP": policy(live=every is not None),
        "STYLE": _assets(*STYLES),
        "SCRIPT": _assets(*SCRIPTS),
        "DATA": data.translate(ESCAPES),
    }
    html = _assets("page.html")
    for name, text in parts.items():
        html = html.replace(f"{{{{{name}}}}}", text, 1)  # once: the data may contain such a name as well
    return html


@functools.cache
def policy(live: bool) -> str:
    """The content security policy: scripts and styles by their hash, connections only to the live view."""
    allowed = "'self'" if live else "'none'"
    return (
        f"default-src 'none'; script-src '{_hash(_assets(*SCRIPTS))}'; style-src '{_hash(_assets(*STYLES))}'; "
        f"img-src data: blob:; connect-src {allowed}; base-uri 'none'; "
        "form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"  # text never becomes markup
    )


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@functools.cache
def _assets(*names: str) -> str:
    """The content of some files of the page, joined."""
    texts = [files("zeno.report.page").joinpath(name).read_text(encoding="utf-8") for name in names]
    return "\n".join(texts).replace("\r\n", "\n")
