"""The round loop, how its tokens are chosen, and what it measures."""
