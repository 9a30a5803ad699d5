"""Training of a drafter: recipe, data, sampler, trainer, checkpoints."""
