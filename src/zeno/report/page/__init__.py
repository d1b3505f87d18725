"""The HTML page of a run: one file that holds all it needs, or the same page served while the run goes on.

`pack` turns records into the arrays that the page draws, `html` puts these, the styles and the script into one file,
and `live` serves that file on loopback and sends new steps. The content of a run folder is data for the page, never
markup: JSON with `<`, `>` and `&` escaped, shown by `textContent` only.
"""
