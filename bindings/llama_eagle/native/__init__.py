"""Our build of llama.cpp: its location, its C interface through ctypes, its log and its limits."""
