"""Sign that the whole contract suite passed on this tree.

Guarantees: an attestation is written only of a whole run, and only where `--attest` is given. It covers the tree's
digests, what is installed, and the tests that passed. A run that cannot stand for the suite leaves no attestation.

Entry: the suite on its private copy, which loads the pytest plugin.

    python -m harness contract

Order of reading:

- `suite`: the private copy, and its environment.
- `plugin`: the plugin, and the witness that attests a run or says why not.
- `required`: the groups of tests, and the list of tests that must pass.
- `outcomes`: what became of each test.
- `invocation`: how the suite may be called.
- `kills`: what the committed kill table says of this run.
- `canaries`: failing tests that unmask hooks which hide failures.
- `statement`: the in-toto statement and its envelope.
- `signing`: which key signs, and CI's pair.
"""
