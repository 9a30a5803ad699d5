"""Whole runs behind a bad wire, killed and resumed.

Guarantees: no answer is lost or paid twice, no row is wrong, no budget is exceeded; a violation is exit 1. Entry:
`python -m harness chaos`. Read in this order:

- `__main__`: one run from its draw to the comparison of the books, and the program.
- `faults`: what the wire does to an answer. `server`: the emulator behind that wire.
- `session`: one client process, which may be killed.
- `ledger_loss`: what it wrote is lost after a kill, and put back.
- `checks`: both sides' books compared.
"""
