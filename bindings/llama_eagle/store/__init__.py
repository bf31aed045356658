"""Models by name: found or downloaded, converted once, and kept in the user's cache until removed."""
