"""The target model: its files, its layers, its hidden states.

Guarantees: only local files are read; the weights stay as they are. Layer numbers are 0-based and mean outputs of the
residual stream. Refuses targets whose states or head are not what the loss assumes.

Read in this order:

    layers         which hidden states the drafter reads, and how configs name them
    files          config, hashes, embedding and head, without running the model
    hidden_states  the model in this process, and its states of rows
    server         the same states from two SGLang servers

Entry: `hidden_states.load_target`.
"""
