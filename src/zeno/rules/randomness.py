"""Random numbers that no worker can predict: a worker that knew them could choose its gradient to suit."""

import secrets

import numpy as np


def numbers(seed: int | None, state: object) -> tuple[np.random.Generator, tuple[int, int]]:
    """The random numbers of this step, and the state of the next one: a secret, and the number of steps so far.

    A seed takes the place of the secret. Without either, the secret comes from the operating system.
    """
    secret, step = state if isinstance(state, tuple) else (secrets.randbits(64) if seed is None else seed, 0)
    return np.random.default_rng((secret, step)), (secret, step + 1)
