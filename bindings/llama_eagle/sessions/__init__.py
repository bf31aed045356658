"""Sessions: models, contexts, the steps of a round, checkpoints, and exact verification."""
