"""Inference of loose data: readings, their description by a spec, and verification."""
