"""Trains an EAGLE-3 draft for a Hugging Face target, by test-time training. Needs the extra `train`."""
