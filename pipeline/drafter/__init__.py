"""Train, evaluate and export an EAGLE-3 drafter from proven rows.

Guarantees: training reads the ids of the rows and never text; states are those of the target that was given; decoding
with a drafter writes what the target would write without it.

Read in this order:

    row_folders  folders of proven rows, and whether they may be used together
    rows         their rows as ids and masks
    target/      the target model: files, layers, hidden states
    states/      hidden states on disk
    model/       the drafter and its loss
    training/    training data, sampler, trainer, checkpoints, run
    decoding/    speculative decoding and its evaluation
    export/      drafters and rows in other programs' formats

Entry: `training.setup.set_up`; the verbs `states`, `train`, `evaluate` and `export` call the rest.
"""
