"""Hold prompts to the rows that they were made of.

Guarantees: rows are read again by other code than the adapters', so a fault of an adapter shows; every change that is
allowed is named, and any other is a difference. Imported by what prepares and by tests, never by an adapter.

Entry: `compare.differences`. In order of reading:

- `comparison`: changes that are named, and differences
- `source_turns`: a row's turns, each text as published
- `glaive_text`: Glaive's one string, compared by writing it again
- `compare`: one row and its prompt
- `file`: a file of prompts and its source
"""
