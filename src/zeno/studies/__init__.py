"""Many runs: comparison, matrix, the reproduction of the paper, its theorem."""
