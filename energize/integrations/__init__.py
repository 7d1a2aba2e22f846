"""Adapters for training frameworks, one module for each.

Each module imports its framework, and uses the public interface of `Loader` only.
"""
