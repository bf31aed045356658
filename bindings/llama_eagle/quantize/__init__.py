"""GGUF to GGUF with llama.cpp's own quantizer, importance matrices and recipes."""
