"""What the people who receive a folder are warned of; `templates` has the README.md of each."""

from __future__ import annotations

SEEN = """\
WHOEVER MADE THIS FOLDER HAS SEEN EVERY PRIVATE KEY IN IT, those of the holders too. Until each holder has made its own
('fedsyn node new-keys node.yaml' there, 'fedsyn deploy rotate-keys NAME --card FILE' here), the maker could pass for
any of them, and secure sums protect nobody from the maker.
"""

INSECURE = """\
INSECURE, AS YOU ASKED: no encryption and no authentication of nodes. Anyone who reaches the port can read what nodes
send, change it, and pass for a node or for the SuperLink. For trials with made-up rows only.
"""
