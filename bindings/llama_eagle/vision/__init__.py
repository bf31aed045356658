"""Images: what they are read from, the rows that a vision encoder makes of them, and their places in a text."""
