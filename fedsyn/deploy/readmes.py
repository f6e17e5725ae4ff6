"""What the people who receive a folder read: short, for an administrator who never saw fedsyn."""

from __future__ import annotations

from string import Template

_INSTALL = """\
python3 -m venv .venv && .venv/bin/pip install fedsyn
"""

HOLDER = Template("""\
# $holder, a data holder of '$federation'

Together with others you make one synthetic table. **Your rows stay on this machine.** What leaves it are sums with
noise, never more than `policy` in `node.yaml` allows; nobody but you can change that file.

1. Install fedsyn, the version that the operator names: `$install`
2. Put your table here as `rows.csv` (or write its name into `node.yaml`, key `data`)$schema.
3. Read `node.yaml`. Everything in it is a limit that you set: epsilon for a run and for this table's whole life,
   mechanisms, how few others may take part, and who may order a run.
4. Compare fingerprints with the operator by telephone, not by e-mail: $fingerprints.
$own_keys
The one command (keep it running; it starts again by itself whatever happens to it):

```sh
fedsyn node serve node.yaml
```

When a run asks to begin, it waits for you:

```sh
fedsyn node pending              # which run waits, and who ordered it
fedsyn node approve RUN          # shows what it may ask and what that costs, and asks you; or: fedsyn node reject RUN
fedsyn node status node.yaml     # connected? what was answered, what was spent?
```

`state/` holds this table's ledger for life. It is empty: if the table has been in another federation, put the ledger of
that one in its place. Back it up, and never put an older copy there. `*.key` never leave this machine.
""")

OWN_KEYS = Template("""\
5. **Make your own keys.** Those in this folder were made on the operator's machine, so somebody else has had them:

   ```sh
   fedsyn node new-keys node.yaml    # writes $holder.card.yaml for the operator; tell its fingerprint by telephone
   ```
""")

PARTY = Template("""\
# $party, a $role of '$federation'

You compute on numbers that tell you nothing by themselves. $promise

1. Install fedsyn, the version that the operator names: `$install`
2. **Make your own keys.** Those in this folder were made on the operator's machine. In an empty folder:
   `fedsyn party keygen FOLDER --name $party --address $address`; send its `card.yaml` to the operator,
   who sends it to everybody.
3. Read `party.yaml`: what you allow. Compare fingerprints by telephone: $fingerprints.

The one command; port $port must be reachable for $whom:

```sh
fedsyn party serve party.yaml
```

`ledger.jsonl` is what you let out in your life: back it up, never put an older copy in its place. `*.key` never leave
this machine.
""")

OPERATOR = Template("""\
# The operator of '$federation'

Nobody has to trust you with rows: you see sums with noise in them. You run the SuperLink, through which the holders'
nodes are asked, and you order runs.

| | |
|---|---|
| `fedsyn deploy link` | the SuperLink, supervised; keep it running. Holders must reach port $port of $hosts |
| `fedsyn deploy run --out FOLDER` | orders a run of `run.yaml`, waits for it; `--resume` goes on with a broken one |
| `fedsyn deploy status` | who is online, since when; runs |
| `fedsyn deploy stop` | stops the SuperLink; `--run ID`: a run |
| `fedsyn deploy rotate-keys NAME --card FILE` | takes a holder's new public keys; `--link`: a new certificate |
| `fedsyn deploy revoke NAME` | a holder is out, now and after a restart |

Call them in this folder, or with its name behind. $schema

**Never send**: this folder, least of all `ca.key`, `link.key`, `operator.key`. Back up `federation.yaml`, `state/` and
the keys. Each holder gets its folder under `../holders/`, over a channel that nobody else reads; delete it here when it
has arrived.
$seen""")

SEEN = """\
WHOEVER MADE THIS FOLDER HAS SEEN EVERY PRIVATE KEY IN IT, those of the holders too. Until each holder has made its own
('fedsyn node new-keys node.yaml' there, 'fedsyn deploy rotate-keys NAME --card FILE' here), the maker could pass for
any of them, and secure sums protect nobody from the maker.
"""

INSECURE = """\
INSECURE, AS YOU ASKED: no encryption and no authentication of nodes. Whoever can reach the port can read what nodes
send, change it, and pass for a node or for the SuperLink. For trials with made-up rows only.
"""


def install() -> str:
    return _INSTALL.strip()
