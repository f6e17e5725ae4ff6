"""Exit code 0 if the service of this container lives: its /healthz answers at FEDSYN_HEALTH (HOST:PORT).

The service listens there if its own file says so: `listen` of node.yaml, `superlink.metrics` of federation.yaml,
`listen_health` of party.yaml.
"""

from __future__ import annotations

import os
import sys
import urllib.request


def main() -> int:
    url = f"http://{os.environ.get('FEDSYN_HEALTH', '127.0.0.1:9100')}/healthz"
    try:
        with urllib.request.urlopen(url, timeout=4) as answer:
            return 0 if answer.status == 200 else 1
    except OSError as error:
        print(f"{url}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
