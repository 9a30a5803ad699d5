"""gpt-oss's format: every text stands behind a header.

The entry is `load` in `format.py`. Read in this order:

tokens.py      control tokens by name, and the headers made of them
prompt.py      a prompt as text and control ids
typescript.py  tool declarations as TypeScript
grammar.py     the messages of an answer
format.py      `HarmonyFormat`, these together on one tokenizer
"""
