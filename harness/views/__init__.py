"""What a hosted API would show of true token ids.

Guarantees: everything here is a pure function of ids, format and profile, and takes any ids, also those outside the
layout. A rebuild can therefore be judged against ids that are known.

Entry: `view.view`. Order of reading:

- `view`: the profiles, and what each shows of an answer.
- `harmony`, `parsers`: how servers read harmony's messages, and other families' tool calls.
- `openrouter`: the answer as a body or as the events of a stream.
- `roundtrip`: ids to bytes and back to a Completion.
- `resplit`: other tokenisations of the same bytes.
"""
