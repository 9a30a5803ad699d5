"""Our reading of completions beside the engines' own parsers.

Guarantees: a difference passes only with a reason. Entry: `python -m harness parsers`.

- `differential`: recorded cases, and drawn texts with parsers that run live.
- `rules`: what the parsers lose, as functions of our own reading.
- `oracle`: a script that runs an engine's parsers in its environment.
"""
