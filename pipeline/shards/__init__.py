"""Proven rows on disk: shards, quarantine, manifest, merge."""
