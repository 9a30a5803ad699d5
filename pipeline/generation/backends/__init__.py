"""The three implementations of the `Backend` protocol.

Guarantees: each answers one outcome a row, in order, and `generation.outcome` says what the protocol asks of it. Only
hosted and served rows go through the ledger; only hosted ones cost money.

- `hosted.py`: `HostedBackend`, a hosted API or its emulator, through one pinned endpoint
- `server.py`: `ServerBackend`, an SGLang or vLLM server, ids in and ids out
- `local.py`: `LocalBackend`, a model in this process
"""
