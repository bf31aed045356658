"""Synthetic pairs with a real model's shapes and a chosen acceptance rate."""
