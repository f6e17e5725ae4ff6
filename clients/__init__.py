"""Client half of each mechanism; the file has the same name as the strategy."""
