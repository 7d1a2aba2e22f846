"""Shares in what items cost, instead of in how many they are."""
