"""The demo job and the constructed checkpoints it runs on: shapes of real models, text and acceptance known in advance."""
