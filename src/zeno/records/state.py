"""Objects made of numbers and arrays as plain values, and back: to save them, and to make them larger."""

from collections.abc import Mapping
from typing import Any

import numpy as np


def state_of(value: object) -> Any:
    """Numbers, texts, lists and dicts that say what an object holds; its parts may be such objects too."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [state_of(part) for part in value]
    parts = value if isinstance(value, dict) else getattr(value, "__dict__", None)
    return value if parts is None else {name: state_of(part) for name, part in parts.items()}


def with_state(like: Any, state: Any) -> Any:
    """`like` with this state; where an array of `like` is larger than that of the state, the rest keeps its values.

    Objects and arrays in `like` are changed in place. Raises ValueError for the state of something else.
    """
    try:
        if isinstance(like, np.ndarray):
            found = np.array(state, dtype=like.dtype)
            like[tuple(slice(size) for size in found.shape)] = found
            return like
        if isinstance(like, list | tuple) and len(like) == len(state):
            return type(like)(with_state(part, of_part) for part, of_part in zip(like, state, strict=True))
        if isinstance(like, dict):
            return {name: with_state(like.get(name), part) for name, part in state.items()}
        if hasattr(like, "__dict__") and isinstance(state, Mapping):
            for name, part in vars(like).items():
                setattr(like, name, with_state(part, state[name]))
            return like
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ValueError(f"The state is not that of a {type(like).__name__} of this version: {error!r}") from None
    return state
