"""The command line: one module a verb.

Guarantees: a verb's module is imported only when it is the verb; an error of ours is one or two sentences on stderr.
What prints and asks is here, what decides is in the packages below.

Entry: `main.main(arguments)`, behind the boot in `pipeline/__main__.py`. In order of reading:

    main         the menu of verbs, errors and exit statuses
    options      flags that several verbs share, and where a route may be asked
    gate         `gate status`
    generate     `generate`; `report` has its progress and its table
    probe        `probe`
    ledger       `ledger`
    reconstruct  `reconstruct` and `render`, offline
    fingerprint  `fingerprint`
    prepare      `prepare` and `datasets`
    audit        `audit`
    merge        `merge`
    reasons      `reasons`
    states       `states`
    train        `train`
    evaluate     `evaluate`
    export       `export`
"""
