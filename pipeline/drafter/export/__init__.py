"""Drafters and rows in the formats of other programs.

Guarantees: what is written is complete or absent, and was checked first: names, shapes, types, vocabulary, layers. What
is read back is a drafter of the target that was given. Refuses every variant but plain EAGLE-3.

Read in this order:

    config           a served drafter's config.json
    weights          a served drafter's tensors, and checks of them
    serving          a drafter's directory, for SGLang and vLLM
    speculators      the same in the format of speculators
    training_inputs  rows for the trainers SpecForge and speculators

Entry: `serving.export`.
"""
