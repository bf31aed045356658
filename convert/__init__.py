"""Hugging Face checkpoints to GGUF: EAGLE-3 drafts and their targets. Pure Python, no native library."""
