"""Hidden states of proven rows on disk: extraction, shards, manifest."""
