"""The notebook is valid, has no stored outputs, and its cells run in order."""

import json
from pathlib import Path
from typing import Any

import matplotlib
import pytest
import torch

NOTEBOOK = Path(__file__).parent.parent.parent / "examples" / "quickstart.ipynb"


@pytest.fixture(scope="module")
def notebook() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return found


def test_the_notebook_has_the_form_of_jupyter_and_no_outputs(notebook: dict[str, Any]) -> None:
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(ids) == len(set(ids))
    for cell in notebook["cells"]:
        assert cell["cell_type"] in ("markdown", "code")
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None


def test_the_cells_run_and_show_what_the_text_says(
    notebook: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    matplotlib.use("Agg")
    threads = torch.get_num_threads()
    drawn: list[int] = []
    names: dict[str, Any] = {"__name__": "notebook"}
    try:
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
            if "plt" in names:  # Agg draws without a window, and would warn about show()
                names["plt"].show = lambda: drawn.append(1)
    finally:
        torch.set_num_threads(threads)
        names["plt"].close("all")
    assert drawn == [1]
    assert max(names["final"]["mean"], names["final"]["median"]) < 0.3
    assert min(names["final"]["Zeno"], names["final"]["ZenoAuto"]) > 0.8
    assert names["ledger"].suspects == list(range(12))
    assert names["accuracy"] > 0.9
    assert names["server"].ledger.suspects == list(range(12))
    assert "worker 3: not finite" in capsys.readouterr().out


def test_links_lead_somewhere(notebook: dict[str, Any]) -> None:
    text = "\n".join("".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "markdown")
    links = [part.split(")")[0] for part in text.split("](")[1:]]
    assert len(links) == 3
    assert [link for link in links if not (NOTEBOOK.parent / link).is_file()] == []
