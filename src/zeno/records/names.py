"""Names of workers."""

MAX_LETTERS = 100


def is_name(name: object) -> bool:
    """Whether this can be the name of a worker: it is shown in terminals, on pages and in metrics."""
    return isinstance(name, str) and 0 < len(name) <= MAX_LETTERS and name.isprintable() and name == name.strip()


def checked_name(name: object) -> str:
    """The name as a plain string; raises ValueError if it is none."""
    if not isinstance(name, str) or not is_name(name):
        raise ValueError(
            f"The name of a worker is a printable text of 1 to {MAX_LETTERS} characters, without spaces at its ends. "
            f"Found {repr(name)[:MAX_LETTERS]}."
        )
    return str.__str__(name)
