"""Golden token sequences: of the tiny target, and of engines.

Guarantees: a golden records everything that decided its tokens. What is compared is ids; the rest explains a
difference. A golden whose key and tokens stay the same is never rewritten.

Entry: `extension.TokenGolden`, for syrupy, and the program.

    python -m harness goldens --check

Order of reading:

- `golden`: a golden, its file, and how two differ.
- `cases`: the prompts, and what each answer must show.
- `extension`: the comparison under pytest.
- `record`: goldens made by the local engine.
- `refresh`: the program that writes or checks them.
- `engine_sets`: greedy answers of SGLang and vLLM, recorded or checked.
"""
