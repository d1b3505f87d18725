"""The paper's experiments: its figures as runs, its claims as checks on the results."""
