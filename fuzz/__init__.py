"""Hostile input, at random: gradients, replies, run folders, requests. See `python -m fuzz --help`.

A case is one call of something with made-up input, and follows from a seed, the name of its target and a number. So a
case that fails can be repeated alone. A target is a function of a random generator that raises if something got
through; see `fuzz.targets`.
"""
