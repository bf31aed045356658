"""Answers of completions and chats: the token loop, the text so far, and log-probabilities."""
