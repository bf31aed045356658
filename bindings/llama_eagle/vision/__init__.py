"""Images: their sources, their rows from a vision encoder, and their positions in a text."""
