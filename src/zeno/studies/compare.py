"""The same faults and the same batches under several rules, beside the mean without faults."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from zeno.rules import Mean, Rule
from zeno.training.run import RULE_SETTINGS, Run, from_settings, make_rule, name_of, number_or_text, try_rule

RULES = ("mean", "median", "krum", "zeno", "zeno_auto")  # the paper's, and Zeno that is told nothing
DEFAULTS: Mapping[str, Any] = {"faulty": 12, "steps": 200, "eval_every": 10, "zeno_batch_size": 32}
WITHOUT_FAULTS = "mean without faults"


def runs(settings: Mapping[str, Any], rules: Sequence[str] = RULES) -> dict[str, Run]:
    """The runs to compare, by name: settings as for `from_settings`, and rules as the command line writes them.

    `trim` is one more than the number of faulty workers unless given, and lowered to what a rule bears: Krum cannot
    be told of more than (m - 3) / 2. What is written out for one rule wins. The name of each run says what was taken.
    """
    settings = {**DEFAULTS, **settings}
    of_the_rules = {name: number_or_text(settings.pop(name)) for name in RULE_SETTINGS if name in settings}
    base = from_settings({**settings, "rule": "mean"})
    of_the_rules.setdefault("trim", min(base.faulty + 1, base.workers - 1))
    chosen = [with_the_most_it_bears(text, of_the_rules, base.workers) for text in rules]
    return {
        WITHOUT_FAULTS: replace(base, rule=Mean(), faulty=0),
        **{name_of(rule): replace(base, rule=rule) for rule in chosen},
    }


def with_the_most_it_bears(text: str, settings: Mapping[str, Any], workers: int) -> Rule:
    """The rule that the text names, told of `trim` faulty workers, or of the most that it bears of so many."""
    most = settings["trim"]
    if not isinstance(most, int) or not 0 <= most < workers:
        raise ValueError(f"A comparison needs trim from 0 to workers - 1 = {workers - 1}. Found trim={most!r}.")
    for trim in range(most, 0, -1):
        rule = make_rule(text, defaults={**settings, "trim": trim})
        with contextlib.suppress(ValueError):
            try_rule(rule, workers)
            return rule
    return make_rule(text, defaults={**settings, "trim": 0})
