"""Speculative decoding with a drafter, and its evaluation.

Guarantees: a drafted answer is the target's own, token by token; every answer of an evaluation is compared with plain
decoding; plain and speculative decoding run the same passes of the same target.

Read in this order:

    trees      shapes of drafts, growing a tree, accepting a path
    verify     the target's passes over its cache
    drafting   who drafts: the drafter, and baselines
    speculate  greedy decoding, plain and speculative
    prompts    prompts of an evaluation as ids
    evaluate   every prompt by every drafter in every shape
    report     acceptance, speed, losslessness, loops

Entry: `evaluate.evaluate`.
"""
