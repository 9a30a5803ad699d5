"""SGLang and vLLM: servers, a stand-in, and their answers.

Guarantees: an engine that is started here leaves no process behind. Entry: `python -m harness engines`. Read in this
order:

- `settings`: how each engine is started, its command and environment.
- `launch`: an engine's server for the length of a block; `keeper` ends its processes, `cpu_launch` starts SGLang
  without a GPU.
- `chat`: an engine's chat endpoint asked, text view and true ids apart.
- `agreement`: greedy ids of an engine beside those of transformers.
- `scripted_model`: a model that emits any ids that we choose; `cassettes` records what engines show of them.
- `stand_in`: a server without a model that answers by ids as the engines do.
"""
