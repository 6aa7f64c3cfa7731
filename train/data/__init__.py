"""Texts: reading them, their labels, their vocabulary, their batches."""
