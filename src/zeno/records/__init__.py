"""What is written down about a step, the run folder, and the ledger of suspects."""
