"""Entry point of `python -m fedsyn.front.cli`."""

from fedsyn.front.cli import main

main()
