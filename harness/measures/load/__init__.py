"""The cost of a whole run under load.

Guarantees: compared with a bare loop on the same peer, in the same minutes. Entry: `python -m harness load`.

- `__main__`: speed, memory, ledger and resume, with their aims.
- `sides`: the bare loop and the whole run, each in a process of its own.
- `ledger`: the ledger's cost a request, and a large ledger.
"""
