"""Prove which tokens a model emitted, from its API's answer.

Guarantees: a TokenRow has a proof of its ids, and names its evidence. Everything else is a Refusal with a reason from a
closed list. Nothing is guessed.

The entry is `reconstruct` in `pipeline.proof.reconstruct`. Read in this order:

reconstruct.py    one answer, from route to row: which evidence is used, and the prompt
answer.py         the answer's facts: what it shows, what the route is known to do and to count, how it ended
engine_ids.py     evidence `engine_ids` and `logprobs`: ids that came, held to the text
text_guards.py    what every proof from text needs
stream_deltas.py  evidence `stream_deltas`: one token a delta
counted.py        evidence `counted`: the one reading that closes the count, and what no count may hide
fingerprint.py    a route's traits, and whether they are proven
locations.py      which field and character a refusal is about
oracle.py         our rebuild from text, compared with ids that the engine returned
wire/             bodies and streams, read as a Completion
"""
