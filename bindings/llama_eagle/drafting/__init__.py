"""What proposes tokens, and how many."""
