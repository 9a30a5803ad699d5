"""Hypothesis strategies, and the properties of every format.

Guarantees: what providers and models really send wrong is drawn on purpose and often. Every format is held to the same
properties, on compact and on real vocabularies.

Entry: `suite`, whose functions return the property tests of a format.

    test_inverse = suite.inverse(fmt)

Order of reading:

- `suite`: the property tests.
- `contract`: the tests that every family's folder of the contract suite takes.
- `properties`: the properties as functions over drawn values.
- `completions`: answers and ids, in and outside the layout.
- `texts`: completions as text, for parsers that read text.
- `conversations`: prompts.
"""
