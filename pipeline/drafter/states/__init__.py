"""Hidden states of the target on disk.

Guarantees: a store is begun once, continues only under its settings, has the same bytes however often it was stopped,
and every byte that is read is checked against a hash.

Read in this order:

    manifest  what a store records of itself: settings, size, shards
    extract   write a store, shard by shard
    shards    read a store, row by row

Entry: `extract.extract`.
"""
