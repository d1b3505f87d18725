"""Options that commands share, and a flag for every setting of a run and of its execution."""

import inspect
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import typer

from zeno.records import toml
from zeno.records.folder import RUN_FILE
from zeno.training.execution import ExecutionSettings
from zeno.training.run import DEFAULT_RULE, PAPER_TRIM, Run, kind_of

FILE = typer.Argument(None, help="A TOML file with settings, such as the run.toml of a run folder. Flags override it.")
OUT = typer.Option(None, "--out", help="Run folder to write; must be new or empty.", show_default="runs/COMMAND-TIME")
JSON = typer.Option(False, "--json", help="Print the results as JSON, for scripts.")
RUNS = typer.Argument(help="Run folders. The folder of a comparison stands for all of its runs.")


def option(text: str, default: str | bool = False, panel: str | None = None) -> Any:
    """An option that is None unless the user sets it. `default` says what applies then; False: not in the help."""
    return typer.Option(None, help=text, show_default=default, rich_help_panel=panel)


def with_settings(execution: bool = True, **defaults: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command a flag for every setting, and passes those that the user set as its argument `settings`.

    A setting that is a parameter of the command gets no flag. `defaults` are the command's own, for its help. Without
    `execution` there are no flags for how a run is executed.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = dict(inspect.signature(command).parameters)
        del own["settings"]
        flags = {name: flag for name, flag in _flags(defaults, execution).items() if name not in own}

        def call(**given: Any) -> None:
            settings = {name: given.pop(name) for name in flags}
            command(settings={name: value for name, value in settings.items() if value is not None}, **given)

        call.__name__, call.__doc__ = command.__name__, command.__doc__
        call.__signature__ = inspect.Signature(list({**own, **flags}.values()))  # type: ignore[attr-defined]
        return call

    return decorate


def _flags(defaults: Mapping[str, Any], execution: bool) -> dict[str, inspect.Parameter]:
    of_the_rule = {
        "trim": (
            "Faulty workers to tolerate (b): trim or faulty of the rule and pre-aggregators.",
            f"{PAPER_TRIM}, as in the paper",
        ),
        "rho": ("Weight of Zeno's penalty on the squared norm of a candidate.", "the rule's"),
        "zeno_batch_size": ("Samples of the server per step, for scores (n_r) or gradients.", "the rule's"),
    }
    defaults = {"rule": DEFAULT_RULE, **defaults}
    flags = {}

    def add(name: str, kind: Any, panel: str, text: str, default: object) -> None:
        shown = defaults.get(name, default)
        flag = option(text, False if shown is None else str(shown), panel)
        flags[name] = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=flag, annotation=kind | None)

    for f in (*fields(Run), *(fields(ExecutionSettings) if execution else ())):
        add(f.name, kind_of(f), f.metadata["panel"], f.metadata["help"], f.metadata["default"])
        if f.name == "rule":
            for name, (text, value) in of_the_rule.items():
                add(name, str, "Rule", text, value)
    return flags


def read_toml(file: Path | None) -> dict[str, Any]:
    """Returns the settings in a file; none without a file."""
    if file is None:
        return {}
    try:
        return toml.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"There is no file {file}. Name a TOML file with settings, such as RUN/run.toml.") from None
    except IsADirectoryError:
        raise ValueError(f"{file} is a folder. Name a TOML file with settings, such as {file / RUN_FILE}.") from None
    except ValueError as error:
        raise ValueError(f"{file} is not valid TOML: {error}") from None


def new_folder(folder: Path | None, command: str) -> Path:
    """Returns the folder to write to: the one given, which must be new or empty, or a new one in runs/."""
    if folder is None:
        named = Path("runs") / f"{command}-{time.strftime('%Y%m%d-%H%M%S')}"
        return named if not named.exists() else named.with_name(f"{named.name}-{os.getpid()}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"The run folder {folder} is not empty. Name another one with --out.")
    return folder


def settings_to_resume(folder: Path, file: str, what: str, command: str, changed: object) -> Path:
    """Returns the settings file of a folder that `command` has written; raises an error if settings are `changed`."""
    if changed:
        raise ValueError(f"A {what} is resumed with its own settings, in its own folder. Leave out other settings.")
    if not (folder / file).is_file():
        raise ValueError(f"There is no {what} to resume in {folder}. Name a folder that `zeno {command}` has written.")
    return folder / file
