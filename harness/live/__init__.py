"""What a probe brought back: cassettes, contract and fingerprint.

Guarantees: nothing here asks a paid route. What the emulator answered does not enter this tree, and no secret reaches a
file.

Entry: the program.

    python -m harness live record DIR --write

Order of reading:

- `live`: the program: record what a probe brought back, or compare it.
- `cassettes`: a probe's exchanges as cassettes.
- `suite`: the contract tests of a route, and the table beside them.
- `fingerprint_diff`: a fingerprint compared with the committed one.
- `rehearsal`: a probe rehearsed against the emulator.
"""
