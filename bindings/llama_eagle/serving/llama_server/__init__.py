"""llama-server as the front's child: its arguments, its process, and requests to it."""
