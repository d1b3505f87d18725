"""A run from its settings to its records: the loop, checkpoints, interrupts."""
