"""Child processes that load a file and compute with it: one that ends the process ends none of ours."""
