"""Runs `zeno` commands inside the test process."""

import sys

import pytest

from zeno.cli import main


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """Runs `zeno ARGUMENTS` in this process; returns its exit code."""
    monkeypatch.setattr(sys, "argv", ["zeno", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        main()
    return int(end.value.code or 0)
