"""Generate rows: ask engines under a ledger, budget and breaker.

Guarantees: nothing is sent without the gate's permit, and nothing on a paid route before its worst case is reserved in
budget and ledger. Every answer is on disk before it is used, and none is paid for twice. A row comes out proven or
refused, never repaired. Entry: `generate.run_generation`.

Read in this order:

- `generate.py`: `run_generation`, and the way of one row through all the others
- `plan.py`: `Plan`, all that decides which rows come out; `RetryPolicy`, `BreakerPolicy`, `Caps`, `Cover`
- `run.py`: `Run`, the parts of a run, and how they open; the event log
- `outcome.py`: `Row`, `Outcome`, `StopError`, and `Backend`, the protocol of what answers rows
- `backends/`: its three implementations; `engines/`: the clients below them
- `retry.py`: `RetryingClient` and `RateLimiter`
- `paid_client.py`: `PaidClient`, one request with its money
- `billing.py`: what an answer cost, and what that means for its request
- `budget.py`: `Budget`, caps on money, tokens and requests
- `day_spend.py`: what all checkouts spent today
- `ledger.py`, `ledger_schema.py`, `ledger_writer.py`: the ledger, its file, and the thread that writes it
- `ledger_mark.py`: a count, in the run's folder, of what its ledger holds
- `coverage.py`, `preflight.py`: what is refused before the first request
- `breaker.py`: `Breaker`, which stops a run that goes wrong
- `summary.py`: what a session came to
- `reconcile.py`: costs that were not known when a run ended
- `probe/`: the committed probes of a route
"""
