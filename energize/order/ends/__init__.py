"""Where a mix ends, and what becomes of the slots of sources that are over."""
