"""Mixture files of training projects, read as metadatasets.

A module for each family of formats: how a file is recognised, and the metadataset that
it stands for. `formats` lists them.
"""
