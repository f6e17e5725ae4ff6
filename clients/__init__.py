"""Client half of each mechanism, in the strategy's file name."""
