"""Conversion by llama.cpp's own converter, for every family that has no table of ours.

It runs in a child process (driver.py). llama.cpp's files are those of the build's source, in the folder of our library.
"""
