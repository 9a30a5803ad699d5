"""Clients of the engines and APIs that generate tokens.

Guarantees: exact ids or exact bytes come back, and nothing is parsed here but what an engine's ids need. Importing this
package needs no torch; `local.py` does.
Read in this order:

- `openrouter.py`: `OpenRouter`, the client of OpenRouter and of the emulator; one request out, the answer's bytes back
- `request.py`: the body of a chat completion request
- `catalog.py`: endpoints, prices, key limits and past generations, as OpenRouter lists them for free
- `output.py`: `EngineOutput`, the ids that an engine sampled, and the Completion that shows them
- `server.py`: `EngineServer`, the client of an engine's server, and `EngineDialect`, what differs between engines
- `sglang.py`, `vllm.py`: the two dialects; `dialects.py` names them by route
- `local.py`: `LocalEngine`, a Hugging Face model in this process
"""
