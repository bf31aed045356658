"""A target in memory, with or without a draft: models, contexts, the steps of a round, checkpoints, exactness."""
