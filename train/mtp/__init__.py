"""The next-token-prediction head of a target, in training."""
