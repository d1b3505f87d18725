"""How fast, and how right: our rules and those of other packages on the same candidates."""
