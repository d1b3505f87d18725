"""Records of steps, the run folder, and the ledger of suspects."""
