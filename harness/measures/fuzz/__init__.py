"""Mutated answers through `reconstruct`, mutated rows through every adapter.

`python -m harness fuzz`

Guarantees: a case is drawn from its seed and its number alone, so that each can be run again by itself. An answer takes
the way of a line of the verb `reconstruct`, a row that of `prepare`. In order of reading:

- `answers`: the answers that are mutated, with the ids of which they were made
- `mutants`: what is done to JSON values, to streams and to bytes
- `rebuilds`: one mutated answer, and whether what became of it can be right
- `rows`: one mutated dataset row, and whether its text was kept
- `campaign`: cases in order, counted, written down and resumed
"""
