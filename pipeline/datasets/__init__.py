"""Turn datasets' rows into prompts, and audit what they use.

Guarantees: every row that is read comes out as one Prompt or one Rejected with a reason of a closed list. Prompts are
those of the published rows, unaltered; recorded answers after the question are dropped. Sources are streamed, and
memory does not grow with their rows.

Entry: `registry.prompts_of`. In order of reading:

- `rows`: a row as published, the reasons to reject it, and typed access to its columns
- `json_values`, `blocks`, `sources`: rows of JSON, Parquet and hub sources, in blocks that a worker can be handed
- `conversation`: recorded turns as a prompt, and when two prompts ask the same
- `adapters/`: one module a dataset
- `registry`: the datasets by name
- `decontaminate`: prompts that share words with an evaluation
- `fidelity/`: whether a prompt says what its row says, and what was left out
- `prepare`: the rows that are worth a generation, written as prompts.jsonl
- `prompt_source`: a dataset's rows, or prepared prompts, as the lines of a run
- `tool_signs`, `control_text`, `features`: what one prompt uses
- `audit`: what a whole source uses
"""
