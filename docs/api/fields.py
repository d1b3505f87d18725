"""For the API pages: a table of what the fields of a class mean.

We write that as a comment behind the field, or as the help text of a setting, and readers of the site see neither.
"""

import ast
import io
import tokenize
from typing import Any

import griffe

SETTING = "setting"  # zeno.training.run.setting(default, panel, text)
SCHEDULE = ("on", "start", "end", "chance", "redraw")  # what all faults have in common


class Fields(griffe.Extension):
    """Comments of fields become rows of a table below the docstring of their class."""

    def on_attribute_instance(
        self, *, node: ast.AST | griffe.ObjectNode, attr: griffe.Attribute, **kwargs: Any
    ) -> None:
        """A setting has the default and the text of its call."""
        value = getattr(node, "value", None)
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == SETTING:
            assert isinstance(attr.value, griffe.ExprCall)
            attr.value = attr.value.arguments[0]
            attr.extra["fields"]["meaning"] = ast.literal_eval(value.args[2])

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        """Runs after the extension for dataclasses, which has made signatures of the fields."""
        self._module(pkg)

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
                field.docstring = None  # which hides it below: it is in the signature, and in the table
            if not field.name.startswith("_") and (meaning or not in_signature):
                shown = field.name if in_signature else f"{field.name}: {field.annotation}"
                rows.append("| `{}` | {} |".format(*(text.replace("|", "\\|") for text in (shown, meaning))))
        if rows:
            text = cls.docstring.value if cls.docstring is not None else ""
            cls.docstring = griffe.Docstring("\n".join([text, "", "| | |", "|---|---|", *rows]), parent=cls)
        _without_schedule(cls)


def _comment(field: griffe.Attribute) -> str:
    """What is written behind a field."""
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(field.source).readline))
    except (tokenize.TokenError, IndentationError):
        return ""
    return " ".join(token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT)


def _without_schedule(cls: griffe.Class) -> None:
    """Leaves what all faults have in common out of the signature of each."""
    init = cls.members.get("__init__")
    if cls.path.startswith("zeno.faults.") and cls.name != "Fault" and isinstance(init, griffe.Function):
        init.parameters = griffe.Parameters(*[p for p in init.parameters if p.name not in SCHEDULE])
