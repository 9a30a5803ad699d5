"""Recorded HTTP exchanges: record, scrub, replay, check for staleness.

Guarantees: under replay nothing is sent, and a request is answered only if every byte of it is what was recorded. No
secret reaches a file. What the emulator answered is stale once the emulator, its weights or the lock change; what a
paid route answered is stale by age.

Entry: the pytest fixture `replay.cassette`.

    def test_stream(cassette):
        recorded = cassette("emulator/chutes/stream")

Order of reading:

- `cassette`: a recording, and its file.
- `replay`: record and replay of HTTP, and the fixture.
- `scrub`: the secrets that must not lie in a cassette.
- `record`: the emulator's cassettes, and the program that records them.
- `staleness`: whether a recording still speaks for this tree.
"""
