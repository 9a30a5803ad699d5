"""Turn prompts into proven token sequences, and into a drafter.

Guarantees: never imports `harness` or `tests`.

Packages, in the order in which they may import each other:

    records       the values that pass between stages
    base          exact JSON and money, whole files, locks, processes, redaction, prompts
    formats       text and ids of each model family
    proof         from one answer to proven ids, or a reason
    fingerprints  what a route does to text, learned from recorded exchanges
    datasets      dataset rows to prompts, and the audit of what they use
    gate          whether a job may run on exactly this tree
    shards        proven rows on disk, and merged sets of them
    generation    asking engines under a ledger, a budget and a breaker
    drafter       hidden states, training, decoding and export of a drafter
    cli           one module a verb
"""
