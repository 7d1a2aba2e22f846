"""Parts of a run that read different mixtures."""
