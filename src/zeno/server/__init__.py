"""One server step: check what was received, score, aggregate, update."""
