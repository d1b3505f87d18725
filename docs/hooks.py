"""Hooks of the site: the command-line reference, and differences between GitHub's Markdown and Python-Markdown."""

import re
from typing import Any

import typer

from zeno.cli.app import app

CODE = re.compile(r"<code>[^<]*</code>")
REFERENCE = "<!-- The commands are inserted here. -->"
WITH_SETTINGS = "train"  # the command that takes all settings of a run


def on_page_markdown(markdown: str, **kwargs: Any) -> str:
    """Inserts the reference of all commands into the page that asks for it."""
    return markdown.replace(REFERENCE, command_reference()) if REFERENCE in markdown else markdown


def on_page_content(html: str, **kwargs: Any) -> str:
    r"""Removes the backslash from \| inside code in tables, which only GitHub needs."""
    return CODE.sub(lambda code: code[0].replace(r"\|", "|"), html)


def command_reference() -> str:
    """Every command with its options; the settings of a run stand once, for all commands that take them."""
    group = typer.main.get_command(app)
    context = typer.Context(group, info_name="zeno")
    commands = {name: group.get_command(context, name) for name in group.list_commands(context)}
    contexts = {name: typer.Context(command, parent=context, info_name=name) for name, command in commands.items()}
    settings = _settings(commands[WITH_SETTINGS], contexts[WITH_SETTINGS])
    text = [_command(commands[name], contexts[name], settings) for name in commands]
    text.append("## Settings of a run\n")
    text += [f"### {panel}\n\n{_table(options)}" for panel, options in settings.items()]
    return "\n".join(text)


def _command(command: Any, context: Any, settings: dict[str, dict[str, str]]) -> str:
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    own = dict(_row(param, context) for param in command.params if not param.rich_help_panel)
    parts = [f"## zeno {command.name}\n", f"```text\n{usage}\n```\n", f"{command.help}\n", _table(own)]
    taken = _settings(command, context)
    if taken:
        missing = [f"*{panel}*" for panel in settings if panel not in taken]
        exception = f", except those under {', '.join(missing)}" if missing else ""
        parts.append(f"The command also takes the [settings of a run](#settings-of-a-run){exception}.\n")
        changed = {o: text for panel in taken for o, text in taken[panel].items() if settings[panel][o] != text}
        if changed:
            parts.append(f"These settings have other defaults here:\n\n{_table(changed)}")
    return "\n".join(parts)


def _settings(command: Any, context: Any) -> dict[str, dict[str, str]]:
    """The settings of a run that a command takes, as {panel: {option: help}}; its own options have no panel."""
    panels: dict[str, dict[str, str]] = {}
    for param in command.params:
        if param.rich_help_panel:
            panels.setdefault(param.rich_help_panel, {}).update([_row(param, context)])
    return panels


def _row(param: Any, context: Any) -> tuple[str, str]:
    """An option and its help, with the default in parentheses."""
    option, text = param.get_help_record(context)
    option = re.sub(r" <list\[(\w+)\]>", r" <\1>", option) if option.startswith("-") else param.name.upper()
    text = re.sub(r"\s*\[default: \(?(.*?)\)?\]$", r" Default: \1.", " ".join(text.split()))
    return option, text.removesuffix("[required]").strip()


def _table(options: dict[str, str]) -> str:
    rows = [f"| `{option}` | {text} |".replace("||", r"\|\|") for option, text in options.items()]
    return "\n".join(["| | |", "|---|---|", *rows, ""]) if rows else ""
