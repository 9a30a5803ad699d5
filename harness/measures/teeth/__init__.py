"""Break promises one by one, and see which tests notice.

Guarantees: each mutant is one change of one file in a copy of the tree, judged by the contract suite alone. A mutant is
killed by a test that fails, or by a run that does not end. Entry: `python -m harness teeth`. Read in this order:

- `mutants`: the named ones, each a promise broken (`named.toml`), and the drawn ones
- `reach`: which tests execute which lines
- `runner`: one mutant in a copy, its likely tests first
- `table`: what came of them, and a page of promises
- `drift`: past fixes taken back, one at a time
- `__main__`: the program
"""
