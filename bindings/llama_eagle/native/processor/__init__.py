"""The processor: cores, quota, the number of threads, and competition of other programs for the cores."""
