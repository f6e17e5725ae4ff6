"""The front door in Python: `Synthesizer`, `load` and `run`.

They work on tables in memory. Import them from `fedsyn`.
"""
