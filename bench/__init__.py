"""`llama-eagle bench`: plain decoding, ours and llama.cpp's own EAGLE-3, side by side on the same files."""
