"""An app of Flower: clients that nobody controls learn handwritten digits."""
