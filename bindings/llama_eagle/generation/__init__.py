"""The round loop, sampling, and statistics."""
