"""Whole runs behind a bad wire, killed at random and resumed."""
