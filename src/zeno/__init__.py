"""Zeno: distributed SGD that survives any number of faulty workers, as long as one is good."""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # type checkers and documentation tools see the exact names
    from zeno._public import *  # noqa: F403

    __version__: str
else:

    def __getattr__(name: str) -> object:
        """Imports the public names when one of them is first used: `zeno --help` must not wait for torch."""
        if name == "__version__":
            from importlib.metadata import version

            return version("zeno-sgd")
        if name == "__all__" or not name.startswith("_"):
            import zeno._public as public

            names = {key: value for key, value in vars(public).items() if not key.startswith("_")}
            globals().update(names, __all__=sorted(names))
            if name in globals():  # also subpackages, such as zeno.rules, which are now imported
                return globals()[name]
        raise AttributeError(f"module 'zeno' has no attribute {name!r}", name=name, obj=sys.modules[__name__])

    def __dir__() -> list[str]:
        return sorted({"__version__", *__getattr__("__all__")})
