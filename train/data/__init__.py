"""What a draft learns from: documents, their tokens, the vocabulary they need, batches."""
