"""What an epoch is made of, and in which order its samples come."""
