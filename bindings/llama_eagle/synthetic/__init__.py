"""Pairs with a real model's shapes and an acceptance that is set."""
