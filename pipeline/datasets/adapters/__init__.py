"""Turn each dataset's rows into prompts.

Guarantees: an adapter gives one conversation a row, answers included, or raises RejectedError with a reason; turns are
those of the row, and the text of none is edited. Which of its questions is asked is the registry's. `PAGE` says schema,
size, and what is dropped and why; docs/datasets.md is written from it. There is no single entry: `registry.DATASETS`
lists each module's `adapt`.

- `opencode`, `magicoder`: one question a row
- `mixture_of_thoughts`, `openthoughts`, `ultrachat`: lists of turns
- `sharegpt`: conversations in chunks that are joined again
- `glaive`: functions, calls and results in one string
- `sweagent`: trajectories of agents, of three publishers' forms
- `messages`: OpenAI messages, as they are
"""
