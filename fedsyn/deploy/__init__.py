"""A federation on real machines: who needs which files, the SuperLink under supervision, runs that survive it."""
