"""Hypothesis strategies, and the properties that every format must have."""
