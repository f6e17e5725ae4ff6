"""What the people who receive a folder read: short, for an administrator who never saw fedsyn."""

from __future__ import annotations

from string import Template

_WHEEL = Template("""\
fedsyn is installed from one file, the same for everybody, and never by its name alone: the name on a package index
   need not be ours. The file is `$wheel` in this folder. Ask the operator by telephone for its SHA-256, and compare:

   ```sh
   echo "$digest  $wheel" | sha256sum --check
   python3 -m venv .venv && .venv/bin/pip install './$wheel$extra'
   ```
""")

_NO_WHEEL = Template("""\
fedsyn is installed from one file, the same for everybody, and never by its name alone: the name on a package index
   need not be ours. The operator sends it, or makes it in a checkout of fedsyn (`pip wheel --no-deps .`), and tells its
   SHA-256 by telephone. Write that here, in place of SHA256, and install the file only if it is the same:

   ```sh
   echo "$digest  $wheel" | sha256sum --check
   python3 -m venv .venv && .venv/bin/pip install './$wheel$extra'
   ```
""")

HOLDER = Template("""\
# $holder, a data holder of '$federation'

Together with others you make one synthetic table. **Your rows stay on this machine.** What leaves it are sums with
noise, never more than `policy` in `node.yaml` allows; nobody but you can change that file.

1. $install
2. Put your table here as `rows.csv` (or write its name into `node.yaml`, key `data`)$schema.
3. Read `node.yaml`. Everything in it is a limit that you set: epsilon for a run and for this table's whole life,
   mechanisms, how few others may take part, and who may order a run. What the run may ask: `fedsyn explain run.yaml`.
4. Compare fingerprints with the operator by telephone, not by e-mail: $fingerprints.
$own_keys
The one command. It starts what dies in it again; only the system can start the command itself again. For systemd there
is a unit in fedsyn's repository, `deploy/systemd/fedsyn-node@.service`:

```sh
fedsyn node serve node.yaml
```

When a run asks to begin, it waits for you:

```sh
fedsyn node pending              # which run waits, and who ordered it
fedsyn node approve RUN          # says what it may ask, costs and leaves, and asks you; or: fedsyn node reject RUN
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

1. $install
2. **Make your own keys.** Those in this folder were made on the operator's machine. Here: `fedsyn party rotate .`, then
   send the new `card.yaml` to the operator (`fedsyn deploy rotate-keys $party --card FILE` there), who sends it to
   everybody.
3. Read `party.yaml`: what you allow. Its limit for your life has room for $room. `fedsyn explain run.yaml` says what
   the run may ask. Cards of the parties lie in `parties/`. Compare fingerprints by telephone: $fingerprints.

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
| `fedsyn deploy log RUN` | what a run's server said |
| `fedsyn deploy stop` | stops the SuperLink; `--run RUN`: a run |
| `fedsyn deploy add NAME --card FILE` | a holder who joins late |
| `fedsyn deploy rotate-keys NAME --card FILE` | takes a holder's or party's new keys; `--link`: a new certificate |
| `fedsyn deploy remove NAME` | a holder is out, now and after a restart |

Call them in this folder, or with its name behind. A run has one name, at you, every holder and every party: tell them
that name. $schema

$install
$parties
**Never send**: this folder, least of all `ca.key`, `link.key`, `operator.key`. Back up `federation.yaml`, `state/` and
the keys. Each holder gets its folder under `../holders/`$parties_sent, over a channel that nobody else reads; delete it
here when it has arrived.
$seen""")

OPERATOR_PARTIES = Template("""
Parties take part in every run: $parties. Each keeps `fedsyn party serve party.yaml` running on a machine of
its own, which yours must reach; `parties/` has their cards, `party/` the key by which they know you. A party with new
keys sends you its card: `fedsyn deploy rotate-keys PARTY --card FILE` puts it everywhere here, and says who needs it.
""")

SEEN = """\
WHOEVER MADE THIS FOLDER HAS SEEN EVERY PRIVATE KEY IN IT, those of the holders too. Until each holder has made its own
('fedsyn node new-keys node.yaml' there, 'fedsyn deploy rotate-keys NAME --card FILE' here), the maker could pass for
any of them, and secure sums protect nobody from the maker.
"""

INSECURE = """\
INSECURE, AS YOU ASKED: no encryption and no authentication of nodes. Whoever can reach the port can read what nodes
send, change it, and pass for a node or for the SuperLink. For trials with made-up rows only.
"""


def install(wheel: tuple[str, str] | None, extra: str) -> str:
    """How fedsyn gets onto a machine.

    Args:
        wheel: its name and SHA-256; None: it is yet to come.
        extra: of the package, '[fhe]' for one.
    """
    name, digest = wheel or ("FILE.whl", "SHA256")
    return (_NO_WHEEL if wheel is None else _WHEEL).substitute(wheel=name, digest=digest, extra=extra).strip()
