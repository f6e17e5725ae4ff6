"""`python -m fedsyn COMMAND`, where the script is not on the path."""

from __future__ import annotations

from fedsyn.front.cli import main
from fedsyn.output import no_tracebacks

if __name__ == "__main__":
    no_tracebacks()
    main()
