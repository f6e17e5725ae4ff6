"""`python -m fedsyn.cli`."""

from fedsyn.cli import main

main()
