"""Transformer text classifiers whose attention can be trusted as an explanation."""

from importlib.metadata import version

__version__ = version("identiformer")
