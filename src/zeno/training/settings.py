"""Settings as plain values: from a TOML file or the command line to a `Run`, and back."""

import ast
import functools
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields
from typing import Any

from zeno.faults import FAULTS, Fault, together
from zeno.problem.registry import NOTHING, build, describe, find, parse, split
from zeno.problem.splits import SPLITS
from zeno.records import toml
from zeno.rules import PARTS, RULES, Rule, chain
from zeno.training.run import DEFAULT_RULE, PAPER_TRIM, RULE_SETTINGS, Run, check_values, kind_of
from zeno.workers.delays import DELAYS


def from_settings(settings: Mapping[str, Any]) -> Run:
    """A Run from plain values, as in a TOML file or on the command line. Errors name the setting that is wrong."""
    check_values(settings)
    values = dict(settings)
    rule_settings = pop_rule_settings(values)
    rule = make_rule(values.pop("rule", DEFAULT_RULE), rule_settings)
    objects = {name: PARSERS[name](values.pop(name)) for name in ("fault", "split", "delay") if name in values}
    return Run(**values, **objects, rule=rule)


def pop_rule_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Removes the settings that are parameters of rules, and returns them."""
    return {name: _number_or_text(settings.pop(name)) for name in RULE_SETTINGS if name in settings}


def _number_or_text(value: object) -> object:
    """The value of a flag that takes a number or a word: 13, 5e-4 or auto."""
    try:
        return ast.literal_eval(value) if isinstance(value, str) else value
    except (ValueError, SyntaxError):
        return value


def make_rule(text: str, settings: Mapping[str, Any] = NOTHING, defaults: Mapping[str, Any] = NOTHING) -> Rule:
    """The rule that the text names, or the chain of pre-aggregators and a rule.

    `settings` override the text in every part that has a parameter of that meaning; `defaults` fill in what the text
    leaves out.
    """
    known, texts = REGISTRIES["rule"], split(text)
    kinds = [find("rule", parse(part)[0], known) for part in texts]
    if kinds[-1] not in RULES.values():
        raise ValueError(f"The rule {text!r} ends with a pre-aggregator. Add a rule, as in {text}+mean.")
    parameters = [{f.name: f.default for f in fields(kind)} for kind in kinds]
    takes = dict.fromkeys(p for names in parameters for p in names)
    for name in settings:
        if takes.keys().isdisjoint(RULE_SETTINGS[name]):
            raise ValueError(f"The rule {text!r} has no {name}. It takes: {', '.join(takes) or 'nothing'}.")

    def of(names: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
        return {p: value for name, value in values.items() for p in RULE_SETTINGS[name] if p in names}

    def make(part: str, names: Mapping[str, Any]) -> Any:
        return build("rule", part, known, of(names, {"trim": PAPER_TRIM, **defaults}), of(names, settings))

    return chain(*map(make, texts, parameters))


def make_fault(text: str) -> Fault:
    """The fault that the text names, or several: `label_flip(on=8)+crash`."""
    parts = [build("fault", part, FAULTS) for part in split(text)]
    return together(*parts) if len(parts) > 1 else parts[0]


REGISTRIES: dict[str, Mapping[str, Any]] = {"rule": PARTS, "fault": FAULTS, "split": SPLITS, "delay": DELAYS}
PARSERS: dict[str, Callable[[str], Any]] = {
    "rule": make_rule,
    "fault": make_fault,
    "split": lambda text: build("split", text, SPLITS),
    "delay": lambda text: build("delay", text, DELAYS),
}


def values_in(text: str) -> dict[str, Any]:
    """The settings in a text of `Run.to_toml` as values to compare, each in one form, however it was written.

    Settings that are not in the text, such as those that an older version did not have, are at their defaults.
    """
    written = toml.loads(text)
    values = {**written, **{name: value for name, value in _defaults().items() if name not in written}}
    for f in fields(Run):
        if kind_of(f) is float:
            values[f.name] = float(values[f.name])
    for name, known in REGISTRIES.items():
        with suppress(ValueError):  # a user's object
            values[name] = describe(PARSERS[name](values[name]), known)
    return values


@functools.cache
def key_of(text: str) -> str:
    """What identifies the run with these settings: those of a text of `Run.to_toml` that are not at their defaults.

    It is the same for a text from a version with fewer settings. The folder of the data is not part of it.
    """
    changed = {name: value for name, value in values_in(text).items() if value != _defaults().get(name)}
    return toml.dumps({**changed, "data": None})


@functools.cache
def _defaults() -> dict[str, Any]:
    return toml.loads(Run().to_toml())
