"""What came over the wire, read as a Completion.

Guarantees: text is what the JSON strings say and otherwise untouched. What contradicts itself, or would be lost, is
refused. Whether the ids say what the text says is the proof's work.

The entries are `completion_of_json` and `completion_of_sse` in `completion.py`. Read in this order:

completion.py  a body or a stream as a Completion
fields.py      single fields, each read as what it must be
token_ids.py   ids that an engine returned, wherever it put them
sse.py         the events of a stream, the frequent ones read at once
"""
