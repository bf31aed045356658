"""Targets of the trainer: Hugging Face checkpoints in transformers, and GGUFs in our engine."""
