"""Training, measuring and comparing: the same from Python as from the command line."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .analyzing import analyze
    from .api import describe, sweep, train
    from .attributing import attribute
    from .callbacks import IdentifiabilityMonitor
    from .errors import Interrupted, MonitorWarning
    from .predicting import evaluate, predict
    from .report.compare import compare
    from .reporting import make_report
    from .tokens import identify_tokens

__all__ = [
    "IdentifiabilityMonitor",
    "Interrupted",
    "MonitorWarning",
    "analyze",
    "attribute",
    "compare",
    "describe",
    "evaluate",
    "identify_tokens",
    "make_report",
    "predict",
    "sweep",
    "train",
]

_HOMES = {
    "train": ".api",
    "describe": ".api",
    "sweep": ".api",
    "analyze": ".analyzing",
    "attribute": ".attributing",
    "evaluate": ".predicting",
    "predict": ".predicting",
    "IdentifiabilityMonitor": ".callbacks",
    "Interrupted": ".errors",
    "MonitorWarning": ".errors",
    "compare": ".report.compare",
    "make_report": ".reporting",
    "identify_tokens": ".tokens",
}


def __getattr__(name: str) -> Any:
    """Import on first use, so that `identiformer --help` does not wait for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name], __name__), name)
