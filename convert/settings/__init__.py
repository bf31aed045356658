"""Settings of a folder other than weights: used, without effect, or named."""
