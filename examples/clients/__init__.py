"""energize under other people's training loops."""
