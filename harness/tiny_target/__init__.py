"""A real small language model in Kimi's layout, trained here.

Guarantees: a seed gives the same text, the same vocabulary and, on one machine, the same weights. No question of the
held-out split is taught. Only training and examination need torch.

Entry: the program.

    python -m harness tiny-target check

Order of reading:

- `grammar`: which conversations there are, and how often each.
- `topics`, `tools`: arithmetic, talk, code; tool calls and results.
- `samples`, `words`: what a sample is; word pools, and the draw.
- `prompts`: the shipped prompts.
- `layout`, `vocabulary`, `conversion`: samples as ids; the tokenizer and its files.
- `train`: the recipe and the model.
- `check`: the examination.
- `provenance`: where the committed weights come from.
"""
