"""Weights that follow the step: their integrals, and the schemes over them."""
