"""Kimi's format, K2 to K2.6.

The entry is `load` in `format.py`. Read in this order:

tokens.py      control tokens by name
releases.py    what tells the releases apart, as values
prompt.py      a prompt as text and control ids
typescript.py  tool declarations as TypeScript
grammar.py     what may follow what in a completion
format.py      `KimiFormat`, these together on one tokenizer
"""
