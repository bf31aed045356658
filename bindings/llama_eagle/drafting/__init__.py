"""Drafters and the policies that choose draft length and drafter."""
