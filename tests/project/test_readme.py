"""The README's code runs, and its tree is true."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import zeno

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.parametrize("code", blocks("python"))
def test_python_blocks_run(code: str) -> None:
    exec(code, {"__name__": "readme"})


def test_the_diff_survives_12_faulty_of_20_and_what_it_changes_does_not() -> None:
    [diff] = blocks("diff")
    lines = diff.splitlines()
    torch.manual_seed(0)
    with_zeno: dict[str, Any] = {}
    exec("\n".join(line[1:] for line in lines if not line.startswith("-")), with_zeno)
    without: dict[str, Any] = {}
    exec("\n".join(line[1:] for line in lines if not line.startswith("+")), without)
    assert with_zeno["accuracy"] > 0.9
    assert without["accuracy"] < 0.5
    assert sum(line.startswith("+") for line in lines) <= 10


def test_the_tree_names_every_file_of_the_package() -> None:
    tree = README.split("## What is where")[1]
    package = Path(zeno.__file__).parent
    names = {f"{path.name}/" if path.is_dir() else path.name for path in package.iterdir()}
    for name in names - {"__pycache__/", "py.typed"}:
        assert re.search(rf"(^|[\s(]){re.escape(name)}", tree), f"{name} is missing from the README's tree"


def test_every_make_target_that_is_named_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    pages = README + (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = set(re.findall(r"(?:`| {4})make ([a-z-]+)", pages))
    assert {"demo", "test", "test-slow"} <= named
    for target in named:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), f"make {target}"
