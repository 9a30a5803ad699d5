"""The EAGLE-3 model: configuration, attention, decoder layer, loss."""
