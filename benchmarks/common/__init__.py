"""What several benchmarks share: photographs, measurements and comparisons."""
