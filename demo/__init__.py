"""The demo and its trained pair."""
