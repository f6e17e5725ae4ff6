"""What the administrator of a crypto party may type wrongly, and the one sentence that says so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedsyn.errors import ConfigError
from fedsyn.keys.party_keys import load_party, new_operator, new_party
from fedsyn.stores.parties.policy import load_party_file
from fedsyn.stores.parties.serving import CryptoService
from fedsyn.version import installing

pytest.importorskip("tenseal")

BIN = Path(sys.executable).parent
GOOD = """\
role: crypto
operators: [study/certificate.pem]
policy:
  epsilon_per_run: 1.0
  epsilon_total: 3.0
  delta: 1.0e-5
  mechanisms: [fhaim, sketch_aim]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A party's folder, with the operator's in it."""
    new_party(tmp_path, "elder", "127.0.0.1:7443")
    new_operator(tmp_path / "study", "study")
    (tmp_path / "party.yaml").write_text(GOOD, encoding="utf-8")
    return tmp_path


def one_sentence(error: pytest.ExceptionInfo[ConfigError]) -> None:
    assert "\n" not in str(error.value) and len(str(error.value)) < 400


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("role: crypto", "role: crpto", "role: must be 'compute' or 'crypto'"),
        ("role: crypto\n", "", r"role 'compute' needs the cards of the other two parties, found 0; .* role: crypto"),
        ("role: crypto", "role: crypto\nparties: [a.yaml, b.yaml]", "role 'crypto' has no other parties; leave it out"),
        ("[study/certificate.pem]", "study/certificate.pem", r"operators: expected a list: \[study/certificate.pem\]"),
        ("[fhaim, sketch_aim]", "fhaim", r"policy.mechanisms: expected a list: \[fhaim\]"),
        ("[fhaim, sketch_aim]", "[fhiam]", r"no mechanism 'fhiam' \(did you mean 'fhaim'\?\)"),
        ("role: crypto", "role: crypto\nlisten: 0.0.0.0", "listen: expected HOST:PORT"),
        ("role: crypto", "role: crypto\nlisten: ':7443'", "listen: expected HOST:PORT"),
        ("policy:", "policy:\n  threat: malicious", "no run with a crypto party is protected against a server"),
        ("epsilon_total: 3.0", "epsilon_total: 0.3", "epsilon_per_run is more than policy.epsilon_total"),
    ],
)
def test_what_the_file_may_not_say(folder: Path, old: str, new: str, said: str) -> None:
    (folder / "party.yaml").write_text(GOOD.replace(old, new), encoding="utf-8")
    with pytest.raises(ConfigError, match=said) as caught:
        load_party_file(folder / "party.yaml")
    one_sentence(caught)


@pytest.mark.parametrize("name", ["", "study", "part.yaml"])
def test_a_name_that_is_no_partys_file(folder: Path, name: str) -> None:
    with pytest.raises(
        ConfigError, match=r"(is a folder|does not exist): a party is described by a file with"
    ) as caught:
        load_party_file(folder / name)
    one_sentence(caught)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("study/certificate.pem", "sturdy/certificate.pem", "it is the certificate.pem that the operator gives"),
        ("study/certificate.pem", "study", "it is the certificate.pem that the operator gives"),
        ("study/certificate.pem", "study/tls.key", "expected a certificate"),
        ("study/certificate.pem", "card.yaml", "expected a certificate"),
        ("study/certificate.pem", "certificate.pem", "one of them has this party's own key"),
        ("role: crypto", "role: crypto\nfolder: study", "is not the folder of a party's keys: it has no card.yaml"),
        ("role: crypto", "role: crypto\nledger: none/ledger.jsonl", "ledger: cannot open"),
    ],
)
def test_files_that_do_not_fit(folder: Path, old: str, new: str, said: str) -> None:
    (folder / "party.yaml").write_text(GOOD.replace(old, new), encoding="utf-8")
    with pytest.raises(ConfigError, match=said) as caught:
        CryptoService(load_party_file(folder / "party.yaml"))
    one_sentence(caught)


def test_a_card_is_not_a_folder(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"is not the folder of a party's keys: .* fedsyn party keygen"):
        load_party(folder / "card.yaml")


@pytest.mark.slow
def test_without_tenseal_the_party_says_what_to_install(folder: Path) -> None:
    """As on a machine where the extra is missing; what needs no ciphertexts works there."""
    (folder / "absent" / "tenseal").mkdir(parents=True)
    (folder / "absent" / "tenseal" / "__init__.py").write_text("raise ImportError\n", encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(folder / "absent")}
    for words, needs_it in ((("party", "serve"), True), (("ledger", "show"), False)):  # which finds no ledger yet
        done = subprocess.run(
            [str(BIN / "fedsyn"), *words, str(folder / "party.yaml")],
            capture_output=True,
            text=True,
            env=environment,
            timeout=60,
            check=False,
        )
        assert done.returncode == 2 and "Traceback" not in done.stderr
        assert (installing("fhe") in done.stderr) is needs_it
