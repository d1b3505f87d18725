"""Speed and correctness of the rules next to other packages, and the cost of each part of a step."""
