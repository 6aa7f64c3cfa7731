"""Hydra configuration: what a run is made of."""
