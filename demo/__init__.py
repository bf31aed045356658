"""The demo job and the constructed checkpoints it runs on: real shapes, text and acceptance known in advance."""
