"""Run folders whose files were changed at random, read by every command that reads one."""

import contextlib
import functools
import io
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import zeno
from zeno.cli import main

COMMANDS = ("suspects", "report")
VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    10**400,
    1e308,
    "NaN",
    "x" * 1000,
    [],
    {},
    [[]],
    "__proto__",
    "\u2028</script>",
)


@functools.cache
def made_run() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="zeno-fuzz-"))
    run = zeno.Run(task="digits", workers=6, faulty=2, steps=5, eval_every=2)
    zeno.train(run, folder=folder / "run")
    return folder / "run"


def folders(rng: np.random.Generator) -> None:
    """Any command ends with 0 or 2 and says something, without a traceback."""
    with tempfile.TemporaryDirectory(prefix="zeno-fuzz-") as place:
        folder = Path(place) / "run"
        shutil.copytree(made_run(), folder)
        files = sorted(path for path in folder.iterdir() if path.is_file())
        for _ in range(int(rng.integers(1, 3))):
            _change(rng, files[rng.integers(len(files))])
        command = str(rng.choice(COMMANDS))
        code, text = run([command, str(folder)])
        assert code in (0, 2), f"zeno {command} ended with {code}: {text[-500:]}"
        assert "Traceback" not in text, text[-2000:]


def run(arguments: list[str]) -> tuple[int, str]:
    """Exit code and output of `zeno ARGUMENTS`."""
    out = io.StringIO()
    before = sys.argv
    sys.argv = ["zeno", *arguments]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            main()
    except SystemExit as end:
        return int(end.code or 0), out.getvalue()
    finally:
        sys.argv = before
    return 0, out.getvalue()


def _change(rng: np.random.Generator, file: Path) -> None:
    raw = bytearray(file.read_bytes())
    kind = rng.integers(7)
    place = int(rng.integers(len(raw) + 1))
    if kind == 0 and place < len(raw):
        raw[place] ^= 1 << int(rng.integers(8))
    elif kind == 1:
        del raw[place:]
    elif kind == 2:
        raw[place:place] = rng.bytes(int(rng.integers(1, 50)))
    elif kind == 3:
        raw[place:place] = b"[" * 100_000
    elif kind == 4:
        raw[place:place] = b"9" * 5_000
    elif kind == 5:
        lines = raw.splitlines(keepends=True)
        rng.shuffle(lines)
        raw = bytearray(b"".join(lines))
    else:
        raw = bytearray(_other_value(rng, raw))
    file.write_bytes(raw)


def _other_value(rng: np.random.Generator, raw: bytearray) -> bytes:
    """With another value in one place of one JSON line."""
    lines = bytes(raw).splitlines()
    chosen = int(rng.integers(len(lines))) if lines else 0
    try:
        found = json.loads(lines[chosen])
        name = sorted(found)[rng.integers(len(found))]
        found[name] = VALUES[rng.integers(len(VALUES))]
        lines[chosen] = json.dumps(found).encode()
    except (ValueError, IndexError, TypeError, RecursionError):
        pass
    return b"\n".join(lines)
