"""Programs that a benchmark starts in a process or environment of their own."""
