"""A block draft with a Markov head, in training."""
