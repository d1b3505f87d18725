"""Passes over the candidates in memory, sorting networks, eigenvalues."""
