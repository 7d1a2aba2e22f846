"""Measurements of energize and its peers; what they found is in README.md."""
