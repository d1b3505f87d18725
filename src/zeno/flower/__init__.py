"""Zeno as a strategy of Flower, for training with parties that you do not control; requires the extra `flower`."""

try:
    import flwr as _flwr  # noqa: F401
except ImportError as error:
    raise ImportError("zeno.flower requires Flower. Install it with: pip install 'zeno-sgd[flower]'") from error

from zeno.flower.strategy import ZenoStrategy as ZenoStrategy
