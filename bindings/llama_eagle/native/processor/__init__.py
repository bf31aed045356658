"""The processor that this process may use: cores, quota, the number of threads, and competition for the cores."""
