"""A run to look at: one HTML file that holds all it needs, or the same page served while the run goes on.

`folders` reads run folders, `pack` turns their records into the few arrays that the page draws, `html` puts them, the
styles and the script into one file, and `live` serves that file on loopback and hands on the steps as they come. What
comes from a run folder is data for the page, never markup: JSON with `<`, `>` and `&` escaped, shown by `textContent`
only.
"""

from zeno.report.page.folders import Seen, runs_in, seen
from zeno.report.page.html import build

__all__ = ["Seen", "build", "runs_in", "seen"]
