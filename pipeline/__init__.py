"""Prompts to proven token sequences to a drafter. Never imports `harness` or `tests`."""
