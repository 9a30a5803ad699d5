"""Programs that print a number, as `python -m harness NAME`.

Guarantees: the contract suite imports none of them. A missed aim is exit 1 unless a program says otherwise. `python -m
harness` lists them. By what they measure:

- `fidelity`, `families`, `fingerprints`, `parsers/`, `tool_detection`: whether rows and readings are right.
- `fuzz/`: mutated answers and dataset rows. `refusals`: which refusals of recorded answers are needless.
- `replay` with `second_readings`, `chaos/`, `breaker`: what a bad wire and a bad provider do to a run.
- `load/`, `reconstruct_speed`, `dataset_speed`, `training_speed` with `training_sides`: time and memory.
- `engines/`: real engines. `drafter/`: drafters trained and evaluated end to end.
- `layout`, `walks`, `offline_verbs`: the shape of the tree, what a job enters, whether a change kept its output.
"""
