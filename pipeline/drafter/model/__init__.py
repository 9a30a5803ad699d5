"""The EAGLE-3 drafter: configuration, attention, decoder layer, loss.

Guarantees: names, shapes and the order of operations are those that SGLang and vLLM load and run. Training computes
exact gradients and keeps no [rows, rows] and no [rows, vocabulary] tensor.

Read in this order:

    config         sizes of a drafter, and its draft vocabulary
    model          the drafter: training-time test and decoding
    decoder_layer  its one layer, and the decoding cache
    attention      attention of training-time test, over flash kernels
    loss           supervised rows, the teacher, and the fused loss

Entry: `model.Drafter`.
"""
