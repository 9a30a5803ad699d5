"""OpenRouter's dialect over the tiny target, with true ids.

Guarantees: every answer is in the oracle log with its true ids before its first byte is sent; what is shown of it
follows from these ids and a provider's profile alone. Emulated dollars are not money.

Entry: `server.emulator_in_process`, or the program.

    python -m harness emulator --port 0
    with emulator_in_process(fmt, PoolAnswerer(common=[ids]), folder / "oracle.jsonl") as emulator:
        emulator.post(body)

Order of reading:

- `server`: the emulator on a loopback port, in the foreground or in this process.
- `app`, `request`, `errors`: the endpoints, a request read, error answers.
- `service`: one answer made, logged, billed and shown.
- `answers`: a pool of prepared answers, or the local engine.
- `catalog`, `account`, `oracle_log`: what is offered, what was billed, what was true.
- `survey`, `traits`: many real answers, and the traits measured on them.
"""
