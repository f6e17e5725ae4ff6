"""The front door in Python: `Synthesizer`, `load` and `run`, on tables in memory. Import from `fedsyn`."""
