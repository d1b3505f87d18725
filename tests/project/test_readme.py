"""The README is short, its code runs, and its tree matches the repository."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import zeno

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
MOST_WORDS = 1500


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_the_readme_is_short() -> None:
    assert len(README.split()) <= MOST_WORDS


@pytest.mark.parametrize("code", blocks("python"))
def test_python_blocks_run(code: str) -> None:
    exec(code, {"__name__": "readme"})


def test_the_diff_survives_12_faulty_workers_of_20_and_the_original_does_not() -> None:
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


def test_the_tree_has_one_line_for_each_package_and_folder() -> None:
    tree = README.split("## Repository")[1]
    package = Path(zeno.__file__).parent
    packages = {path.name for path in package.iterdir() if (path / "__init__.py").is_file()}
    assert sorted(re.findall(r"^      (\w+)/ ", tree, flags=re.MULTILINE)) == sorted(packages)
    folders = {path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")}
    named = set(re.findall(r"^    (\w+)/", tree, flags=re.MULTILINE))
    assert named == folders & named
    assert {"src", "benchmarks", "examples", "tests", "docs"} <= named


def test_every_make_target_that_is_named_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    pages = README + (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = set(re.findall(r"(?:`| {4})make ([a-z-]+)", pages))
    assert {"demo", "test", "test-slow", "docs", "bench"} <= named
    for target in named:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), f"make {target}"
