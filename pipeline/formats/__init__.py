"""Prompts and answers as token ids, for each model family.

Guarantees: a format is opened only on the vocabulary that it is pinned to. Control tokens are appended by id and text
is encoded apart; `parse` is the inverse of `assemble`. What a layout cannot express is refused.

The entry is `open_format(name)` in `pipeline.formats.registry`. Read in this order:

registry.py        the formats by name, each with its vocabulary's hash
format.py          `Format`, the base class of every family, and `Parts`, what a completion says
tokenizer.py       text to ids and back: `Tokenizer`, and Kimi's vocabulary files
tokenizer_json.py  a Hugging Face `tokenizer.json` as a `Tokenizer`
pieces.py          text mixed with control tokens, and its ids
chat_template.py   the model's own template, compared with our rendering
messages.py        fields of a prompt's messages, refused where engines print them differently
kimi/              Kimi K2 to K2.6
harmony/           gpt-oss
tagged.py          the other families: a grammar, and a `Dialect` for each
qwen.py, qwen35.py, glm.py, glm45.py, deepseek.py, deepseek_v32.py, chatml.py  the dialects
"""
