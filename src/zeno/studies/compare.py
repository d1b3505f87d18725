"""The same faults and the same batches under several rules, next to the mean without faults."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from zeno.faults import LabelFlip
from zeno.problem.registry import describe
from zeno.rules import PARTS, Mean, Rule
from zeno.training.dry_run import try_rule
from zeno.training.run import Run
from zeno.training.settings import from_settings, make_rule, pop_rule_settings

RULES = ("mean", "median", "krum", "zeno", "zeno_auto")  # the paper's, and Zeno without tuning
DEFAULTS: Mapping[str, Any] = {"faulty": 12, "steps": 200, "eval_every": 10, "zeno_batch_size": 64}
WITHOUT_FAULTS = "mean without faults"


def runs(settings: Mapping[str, Any], rules: Sequence[str] = RULES) -> dict[str, Run]:
    """The runs to compare, by name. Takes settings as `from_settings` does, and rules as on the command line.

    `trim` defaults to one more than the number of faulty workers. A rule that cannot tolerate that many gets the
    largest number it can: (m - 3) / 2 for Krum. Parameters written in the text of a rule take precedence. The name of
    each run states the parameters in use.
    """
    settings = {**DEFAULTS, **settings}
    rule_settings = pop_rule_settings(settings)
    base = from_settings({**settings, "rule": "mean"})
    rule_settings.setdefault("trim", min(base.faulty + 1, base.workers - 1))
    chosen = [most_tolerant(text, rule_settings, base.workers) for text in rules]
    return {
        WITHOUT_FAULTS: replace(base, rule=Mean(), faulty=0, fault=LabelFlip()),
        **{describe(rule, PARTS): replace(base, rule=rule) for rule in chosen},
    }


def most_tolerant(text: str, settings: Mapping[str, Any], workers: int) -> Rule:
    """The rule that `text` names, set to tolerate `trim` faulty workers, or the most it can among this many."""
    most = settings["trim"]
    if not isinstance(most, int) or not 0 <= most < workers:
        raise ValueError(f"A comparison needs trim from 0 to workers - 1 = {workers - 1}. Found trim={most!r}.")
    for trim in range(most, 0, -1):
        rule = make_rule(text, defaults={**settings, "trim": trim})
        with suppress(ValueError):
            try_rule(rule, workers)
            return rule
    return make_rule(text, defaults={**settings, "trim": 0})
