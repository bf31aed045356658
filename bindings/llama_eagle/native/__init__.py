"""Our build of llama.cpp: where it lies, its C interface through ctypes, its log and its limits."""
