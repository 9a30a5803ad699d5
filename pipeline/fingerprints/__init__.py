"""Learn from recorded exchanges what a route does to text.

Guarantees: one fingerprint for each (provider, model, streamed or not), and nothing of another route's. Every line of
the file is learned from, or counted with the reason why not. A trait is proven only by many answers that agree.

Entry: `learn.learn`, on what `harvest.harvest_of_file` read. In order of reading:

- `exchanges`: one recorded request and its answer, and what the copy can testify to
- `models`: which format a hosted model answers in, by its slug
- `votes`: what many answers say of one trait, and whether that proves it
- `observations`: an exchange as an answer of one model, and what its token count is made of
- `harvest`: the answers of a file, and an account of the lines that gave none
- `counts`: control tokens in the count, native counts, tokenisations of equal length
- `shown_text`: white space, line ends, deltas and markers
- `tool_calls`: ids and arguments of parsed calls
- `metadata`: finish reasons, returned ids, logprobs, reasoning tokens and the prompt's prefix
- `learn`: all traits of each route
"""
