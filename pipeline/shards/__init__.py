"""Proven rows on disk: shards, quarantine, manifest, merged sets.

Guarantees: a row stands in exactly one of shards and quarantine, and once. A file is whole or not there, and what a
folder's manifest names is what is on disk, or it is refused. So is a manifest that no known key signed.

Entries: `shards.ShardFolder` for one run, `merge.merge` for a set of several. In order of reading:

    shards        Parquet shards and the quarantine of one run
    signature     who signed a manifest, and whether it still holds
    manifest      manifest.json: settings, sessions, results and files of a folder
    merge_inputs  folders of finished runs, verified against their manifests
    merge         one training set of several runs, by a policy
"""
