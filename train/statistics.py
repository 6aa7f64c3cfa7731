"""Statistics of scores."""

from scipy.stats import binomtest


def accuracy_interval(right: int, rows: int) -> list[float]:
    """Wilson's 95 % interval of an accuracy."""
    interval = binomtest(right, rows).proportion_ci(method="wilson")
    return [float(interval.low), float(interval.high)]
