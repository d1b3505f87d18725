"""Linear algebra on the candidates: passes over memory, distances, sorting networks, eigenvalues."""
