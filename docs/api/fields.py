"""A griffe extension for the API pages: a table with the meaning of each field of a class.

The source states it in a comment after the field, or in the help text of a setting. Neither is part of a docstring.
"""

import ast
import io
import re
import tokenize
from typing import Any

import griffe

SETTING = "setting"  # zeno.training.run.setting(default, panel, text)
SCHEDULE = ("on", "start", "end", "chance", "redraw")  # parameters of every fault


class Fields(griffe.Extension):
    """Adds a table of fields to the docstring of each class."""

    def on_attribute_instance(
        self, *, node: ast.AST | griffe.ObjectNode, attr: griffe.Attribute, **kwargs: Any
    ) -> None:
        """Reads the default and the help text of a setting from its call."""
        value = getattr(node, "value", None)
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == SETTING:
            assert isinstance(attr.value, griffe.ExprCall)
            attr.value = attr.value.arguments[0]
            attr.extra["fields"]["meaning"] = ast.literal_eval(value.args[2])

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        """Runs after the extension for dataclasses, which turns fields into signatures."""
        self._module(pkg)
        _escape(pkg)

    def _module(self, module: griffe.Module) -> None:
        for member in module.members.values():
            if isinstance(member, griffe.Module):
                self._module(member)
            elif isinstance(member, griffe.Class):
                self._class(member)

    def _class(self, cls: griffe.Class) -> None:
        in_signature = "dataclass" in cls.labels
        rows = []
        for field in cls.members.values():
            if not isinstance(field, griffe.Attribute) or field.annotation is None or "property" in field.labels:
                continue
            meaning = field.extra["fields"].get("meaning") or _comment(field)
            if field.docstring is not None:
                meaning = " ".join(field.docstring.value.split())
                field.docstring = None  # hides the field below: it is in the signature and in the table
            if not field.name.startswith("_") and (meaning or not in_signature):
                shown = field.name if in_signature else f"{field.name}: {field.annotation}"
                rows.append("| `{}` | {} |".format(*(text.replace("|", "\\|") for text in (shown, meaning))))
        if rows:
            text = cls.docstring.value if cls.docstring is not None else ""
            cls.docstring = griffe.Docstring("\n".join([text, "", "| | |", "|---|---|", *rows]), parent=cls)
        _without_schedule(cls)
        _without_checks(cls)


def _comment(field: griffe.Attribute) -> str:
    """The comment after a field."""
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(field.source).readline))
    except (tokenize.TokenError, IndentationError):
        return ""
    return " ".join(token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT)


def _without_schedule(cls: griffe.Class) -> None:
    """Removes the parameters that all faults share from the signature of each fault."""
    init = cls.members.get("__init__")
    if cls.path.startswith("zeno.faults.") and cls.name != "Fault" and isinstance(init, griffe.Function):
        init.parameters = griffe.Parameters(*[p for p in init.parameters if p.name not in SCHEDULE])


def _without_checks(cls: griffe.Class) -> None:
    """Shows the parameter `x: Annotated[int, check]` as `x: int`."""
    init = cls.members.get("__init__")
    for parameter in init.parameters if isinstance(init, griffe.Function) else ():
        match parameter.annotation:
            case griffe.ExprSubscript(left=griffe.ExprName("Annotated"), slice=griffe.ExprTuple(elements=[shown, *_])):
                parameter.annotation = shown


def _escape(obj: griffe.Object) -> None:
    """Keeps formulas such as <x, y> visible, which Markdown would take for HTML tags; not inside of backticks."""
    if obj.docstring is not None:
        parts = re.split("(`[^`]*`)", obj.docstring.value)
        obj.docstring.value = "".join(part if part.startswith("`") else part.replace("<", "&lt;") for part in parts)
    for member in obj.members.values():
        if not isinstance(member, griffe.Alias):
            _escape(member)
