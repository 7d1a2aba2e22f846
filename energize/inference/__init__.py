"""What loose data are: inferred from the data, described by a spec, and verified."""
