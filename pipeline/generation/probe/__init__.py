"""Probes of a route: committed prompts with known answers.

A probe records what a route does to text, as exchanges that a fingerprint is learned from. Guarantees: only the
committed prompts are sent, and only where the worst case of all of them fits every cap. Entry: `probe.run_probe`.

Read in this order:

- `probes.py`: `Probe`, what is known of its answer, and the committed file
- `requests.py`: the requests of a probe, and the most that each may cost
- `probe.py`: `run_probe`, which asks them through ledger, budget and retry
- `exchange_file.py`: the answers out of the ledger, as `exchanges.jsonl`
"""
