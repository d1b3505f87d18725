"""Comparable times: contenders take turns, so that a machine that is busy for a while slows all of them."""

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class Contender(NamedTuple):
    """Times `call` on the result of `prepare`, which is not timed."""

    call: Callable[[Any], object]
    prepare: Callable[[], Any] = lambda: None


def best_milliseconds(
    contenders: Mapping[str, Contender], rounds: int = 7, most_seconds: float = 10.0
) -> dict[str, float]:
    """The best time of each. A contender that has used up its seconds skips the remaining rounds."""
    best = dict.fromkeys(contenders, float("inf"))
    spent = dict.fromkeys(contenders, 0.0)
    for turn in range(rounds + 1):
        for name, (call, prepare) in contenders.items():
            if spent[name] > most_seconds:
                continue
            prepared = prepare()
            start = time.perf_counter()
            result = call(prepared)
            seconds = time.perf_counter() - start
            del result, prepared  # freed outside the clock
            spent[name] += seconds
            if turn > 0 or spent[name] > most_seconds:  # the first turn warms up
                best[name] = min(best[name], 1e3 * seconds)
    return best
