"""Routes that the front answers itself, one file for each API."""
