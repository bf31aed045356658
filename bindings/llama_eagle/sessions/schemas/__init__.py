"""JSON schemas, reduced to what llama.cpp's converter makes a grammar of."""
