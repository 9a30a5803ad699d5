"""Decoding with a drafter: trees, drafting, verification, and the report of an evaluation."""
