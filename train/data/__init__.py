"""Training data of a draft: documents, their tokens, the vocabulary they need, batches."""
