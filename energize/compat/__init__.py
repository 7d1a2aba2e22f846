"""Other libraries' vocabulary for mixing, as thin faces over the same core."""
