"""Measures on real engines, SGLang and vLLM.

Guarantees: each starts or asks a real server and compares with ids, never with text alone. Entry: `python -m harness
engines VERB`.

- `text_route`: starts an engine, then runs `routes`, its text view judged by its own ids.
- `kills`: server or client killed and resumed. `speculation`: the engine drafts with our drafter.
- `states`: SGLang's hidden states beside transformers'. `gpu_check`: all that needs a GPU, in one run.
"""
