"""Metrics over the functions of `models.identifiability`."""

from .head_measures import MEASURES, HeadMeasures, measure_heads

__all__ = ["MEASURES", "HeadMeasures", "measure_heads"]
