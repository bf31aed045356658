"""Benchmark of `llama-eagle bench`: plain decoding, our drafting and llama.cpp's own on the same files."""
