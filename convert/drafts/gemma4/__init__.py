"""Drafts for Gemma 4: its assistants, and its block in drafts of other kinds."""
