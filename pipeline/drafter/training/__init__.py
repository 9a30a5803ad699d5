"""Training of a drafter: data, sampler, trainer, checkpoints, run.

Guarantees: the same recipe on the same rows, states, machine and number of processes gives the same weights, bit for
bit on a CPU, stopped and continued or not. A step whose loss or gradient is not finite changes no weight.

Read in this order:

    recipe       every number that decides the weights; learning rate by step
    data         rows or a store, checked against the target
    packing      rows laid end to end as batches
    sampler      which rows train or validate, and which process reads which
    setup        everything loaded and ready to train
    trainer      one optimiser step after another
    distributed  the processes that train together
    checkpoints  a training's whole state on disk
    metrics      figures by step, metrics.jsonl, trackers
    run          the folder and life of a run

Entry: `setup.set_up`; then `run.train`.
"""
