"""What every package stands on: JSON, files, processes, redaction, money.

Guarantees: imports only `pipeline.records`. It has no single entry; its files can be read alone:

    json_lines   JSON lines read fast and strictly, and written
    prompts      prompts from a JSONL file
    files        files that are written whole or not at all, and locks
    disk_sets    sets and counters of keys that spill to disk
    processes    work shared out to processes, results in order
    signing      keys, and what is signed with them
    redaction    secrets taken out of what providers say
    decodings    encodings undone, so that a key behind one is seen
    secret_shapes  what has the shape of a key, in prompts and recordings
    screen       the one writer to the terminal
    money        USD as whole pico-dollars
    binomial     an upper bound on a rate
    paths        where this checkout keeps its state
"""
