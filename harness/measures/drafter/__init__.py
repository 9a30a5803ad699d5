"""Drafters trained and evaluated end to end."""
