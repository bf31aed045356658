"""Prompts that survive a restart of the server."""
