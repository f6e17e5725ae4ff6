"""The files in deploy/ fit what they start: commands, options, keys and metrics exist, and rights are few.

There is no container engine, cluster or Prometheus here, so no file is run. Charts are rendered by a small renderer
that refuses whatever it does not know.
"""

from __future__ import annotations

import configparser
import http.server
import importlib.util
import json
import re
import shlex
import shutil
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedsyn.flower.minors import KNOWN
from fedsyn.front.cli import app
from fedsyn.health import Health, Metrics, Requests, SpentBudget, pages_of
from fedsyn.node.file import NodeFile
from fedsyn.stores.parties.policy import PartyFile
from fedsyn.table.schema import Schema
from support.typed_commands import parse

ROOT = Path(__file__).resolve().parents[3]
DEPLOY = ROOT / "deploy"
DOCKERFILE = DEPLOY / "docker" / "Dockerfile"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
CHARTS = sorted(path.parent for path in DEPLOY.glob("helm/*/Chart.yaml"))
CODE = {"pin.py", "healthy.py", "constraints.txt", "README.md"}
FILES = sorted(path for path in DEPLOY.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
SECRET = re.compile(r"BEGIN [A-Z ]*PRIVATE KEY|password|passwd|token", re.IGNORECASE)


def name_of(path: Path) -> str:
    return path.relative_to(DEPLOY if path.is_relative_to(DEPLOY) else ROOT).as_posix()


# Every file ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [path for path in FILES if path.name not in CODE], ids=name_of)
def test_a_file_says_at_its_top_that_it_was_not_run(path: Path) -> None:
    top = "\n".join(path.read_text(encoding="utf-8").splitlines()[:8])
    assert "NOT RUN HERE" in top and ("lint" in top or "renders" in top)
    assert all(len(line) <= 140 for line in path.read_text(encoding="utf-8").splitlines())


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_no_file_holds_a_secret(path: Path) -> None:
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.lstrip().startswith("#") and "automountServiceAccountToken" not in line:
            assert not SECRET.search(line) or path.name in ("scrape.yaml",), line


# Commands ------------------------------------------------------------------------------------------------------------


def commands() -> dict[str, str]:
    """Every `fedsyn ...` that a file starts or tells somebody to type, by where it stands."""
    found: dict[str, str] = {}
    for number, (instruction, rest) in enumerate(instructions(DOCKERFILE)):
        if instruction == "CMD":
            found[f"Dockerfile {number}"] = shlex.join(["fedsyn", *json.loads(rest)])
    for name, service in compose()["services"].items():
        found[f"compose {name}"] = shlex.join(["fedsyn", *service["command"]])
    for unit in UNITS:
        line = read_unit(unit)["Service"]["ExecStart"]
        found[unit.name] = line.replace("/opt/fedsyn/bin/fedsyn", "fedsyn").replace("%i", "north")
    for chart in CHARTS:
        for kind in rendered(chart, initLedger=True):
            for container in containers(kind):
                if container["command"] == ["fedsyn"]:
                    found[f"{chart.name} {container['name']}"] = shlex.join(["fedsyn", *container["args"]])
    for path in [*FILES, ROOT / "docs" / "node.md"]:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            typed = re.match(
                r"#\s*(?:\d\. )?(fedsyn [a-z].*)|.*exec \w+ (fedsyn [a-z].*)|.*/opt/fedsyn/bin/(fedsyn node init.*)",
                line,
            )
            told = re.findall(r"`(fedsyn [a-z-]+ [a-z-]+(?: [^`]*)?)`", line) + re.findall(
                r": (fedsyn [a-z-]+ [a-z-]+.*)\"", line
            )
            for place, text in enumerate([*filter(None, typed.groups() if typed else ()), *told]):
                found[f"{name_of(path)}:{number} {place}"] = text
    return found


def test_every_command_and_option_exists() -> None:
    found = commands()
    assert {"fedsyn node serve /fedsyn/node.yaml", "fedsyn party serve /fedsyn/party.yaml"} <= set(found.values())
    assert len(found) > 15
    for where, line in found.items():
        words = shlex.split(line)
        groups = {group.name for group in app.registered_groups}
        assert words[1] in groups, f"{where}: there is no 'fedsyn {words[1]}'"
        if len(words) > 3 or "serve" in words or "link" in words:
            parse(line)  # click.UsageError if an option or argument is wrong
        else:
            group = next(group for group in app.registered_groups if group.name == words[1])
            assert group.typer_instance is not None
            known = {
                (each.name or each.callback.__name__.replace("_", "-"))
                for each in group.typer_instance.registered_commands
                if each.callback is not None
            }
            assert words[2] in known, f"{where}: {line}"


# Docker --------------------------------------------------------------------------------------------------------------

_KNOWN_INSTRUCTIONS = {
    "ARG",
    "FROM",
    "WORKDIR",
    "COPY",
    "RUN",
    "LABEL",
    "ENV",
    "USER",
    "EXPOSE",
    "HEALTHCHECK",
    "STOPSIGNAL",
    "ENTRYPOINT",
    "CMD",
}


def instructions(path: Path) -> list[tuple[str, str]]:
    """Instructions of a Dockerfile and what stands behind each, continuation lines joined."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ").splitlines()
    made = [line.split(None, 1) for line in joined if line.strip()]
    return [(word, rest.strip()) for word, rest in made]


def stages(path: Path) -> dict[str, list[tuple[str, str]]]:
    """The instructions of each stage, with those of the stages that it is built from before them."""
    found: dict[str, list[tuple[str, str]]] = {}
    for word, rest in instructions(path):
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            found[name] = list(found.get(base, []))
        elif found:
            found[name].append((word, rest))
    return found


def test_images_run_as_nobody_in_particular_and_hold_the_package_alone() -> None:
    every = instructions(DOCKERFILE)
    assert {word for word, _ in every} <= _KNOWN_INSTRUCTIONS
    assert dict(every)["ARG"] is not None and every[0][0] == "ARG" and "@sha256:" in every[0][1]
    assert all(rest.split(" AS ")[0] in ("${BASE}", "base") for word, rest in every if word == "FROM")
    targets = stages(DOCKERFILE)
    assert {"holder", "operator", "party"} <= set(targets)
    for name in ("holder", "operator", "party"):
        words = [word for word, _ in targets[name]]
        user = [rest for word, rest in targets[name] if word == "USER"]
        assert user and user[-1].split(":")[0].isdigit() and user[-1] != "0:0"
        assert words.index("USER") > max(i for i, word in enumerate(words) if word == "RUN"), "root builds, nobody runs"
        assert "HEALTHCHECK" in words and "ENTRYPOINT" in words and json.loads(dict(targets[name])["ENTRYPOINT"])
        environment = " ".join(rest for word, rest in targets[name] if word == "ENV")
        assert "FLWR_TELEMETRY_ENABLED=0" in environment and not SECRET.search(environment)
    for word, rest in every:
        if word == "COPY" and not rest.startswith("--from"):
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists(), f"COPY {source}: there is no such file"
        if word == "RUN":
            assert "--constraint constraints.txt" in rest or "pip" not in rest


def test_a_build_sees_what_it_copies_and_nothing_else() -> None:
    lines = (DEPLOY / "docker" / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*" and "**/*.key" in rules and "**/*.csv" in rules
    seen = {rule[1:] for rule in rules if rule.startswith("!")}
    copied = {
        source
        for word, rest in instructions(DOCKERFILE)
        if word == "COPY" and not rest.startswith("--from")
        for source in rest.split()[:-1]
    }
    assert copied == seen
    assert not seen & {"tests", "docs", "experiments", "deploy"}


def test_versions_of_an_image_are_those_of_everything_that_the_base_install_needs() -> None:
    spec = importlib.util.spec_from_file_location("pin", DEPLOY / "docker" / "pin.py")
    assert spec is not None and spec.loader is not None
    pin = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pin)
    lines = (DEPLOY / "docker" / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = dict(line.split("==") for line in lines if not line.startswith("#"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = pin.closure([text for text in project["dependencies"] if not text.startswith("flwr")])
    assert set(needed) <= set(pinned), "python deploy/docker/pin.py > deploy/docker/constraints.txt"
    assert any(pinned["flwr"].startswith(f"{major}.{minor}.") for major, minor in KNOWN)


def test_the_health_probe_tells_a_living_service_from_a_dead_one() -> None:
    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/healthz" else 404)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"127.0.0.1:{server.server_address[1]}"

    def probed() -> int:
        command = [sys.executable, str(DEPLOY / "docker" / "healthy.py")]
        return subprocess.run(command, env={"FEDSYN_HEALTH": address}, capture_output=True, check=False).returncode

    assert probed() == 0
    server.shutdown()
    server.server_close()
    assert probed() == 1


# Compose -------------------------------------------------------------------------------------------------------------


def compose() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text(encoding="utf-8"))
    return document


def test_the_rehearsal_has_three_holders_with_a_ledger_each_and_no_rights() -> None:
    document = compose()
    holders = {name: service for name, service in document["services"].items() if name != "superlink"}
    assert len(holders) == 3
    for name, service in document["services"].items():
        assert service["read_only"] and service["cap_drop"] == ["ALL"] and service["restart"] == "always"
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert not {"privileged", "network_mode", "pid", "user", "environment"} & set(service), name
        assert service["build"]["target"] in stages(DOCKERFILE) and service["image"]
        assert (ROOT / service["build"]["dockerfile"]).is_file()
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    volumes = [volume for service in holders.values() for volume in service["volumes"]]
    ledgers = [volume for volume in volumes if volume.endswith(":/fedsyn/state")]
    assert len(ledgers) == len({*ledgers}) == 3 and all(f"holders/{name}/state:" in str(ledgers) for name in holders)
    assert all(volume.endswith(":ro") for volume in volumes if volume not in ledgers), "keys and policy are read-only"


# systemd -------------------------------------------------------------------------------------------------------------

_HARDENED = {
    "NoNewPrivileges": "yes",
    "CapabilityBoundingSet": "",
    "ProtectSystem": "strict",
    "ProtectHome": "yes",
    "PrivateTmp": "yes",
    "PrivateDevices": "yes",
    "ProtectProc": "invisible",
    "RestrictNamespaces": "yes",
    "LimitCORE": "0",
    "MemorySwapMax": "0",
    "UMask": "0077",
    "SystemCallFilter": "@system-service",
}


def read_unit(path: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(path, encoding="utf-8")
    return parser


@pytest.mark.parametrize("path", UNITS, ids=name_of)
def test_a_unit_starts_again_and_can_do_little(path: Path) -> None:
    service = read_unit(path)["Service"]
    assert service["Restart"] == "always" and service["RestartPreventExitStatus"] == "2"
    assert service["User"] == "fedsyn" and service["ReadWritePaths"].startswith("/var/lib/fedsyn/")
    assert {key: service.get(key) for key in _HARDENED} == _HARDENED


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("path", UNITS, ids=name_of)
def test_systemd_accepts_a_unit(path: Path, tmp_path: Path) -> None:
    """With a command that exists here; the check covers keys, values, and the drop-in of the node's keys."""
    shutil.copytree(DEPLOY / "systemd", tmp_path, dirs_exist_ok=True)
    for unit in tmp_path.glob("*.service"):
        unit.write_text(unit.read_text("utf-8").replace("/opt/fedsyn/bin/fedsyn", "/bin/true"), encoding="utf-8")
    command = ["systemd-analyze", "verify", "--man=no", str(tmp_path / path.name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    mentioned = [line for line in (done.stdout + done.stderr).splitlines() if "fedsyn" in line]
    assert mentioned == [] and done.returncode == 0


def test_the_nodes_keys_can_rest_encrypted() -> None:
    text = (DEPLOY / "systemd" / "fedsyn-node@.service.d" / "credentials.conf").read_text(encoding="utf-8")
    copied = re.findall(r"^ExecStartPre=.* \$\{CREDENTIALS_DIRECTORY\}/(\S+) (\S+)$", text, re.MULTILINE)
    loaded = re.findall(r"^LoadCredentialEncrypted=([^:]+):", text, re.MULTILINE)
    assert [name for name, _ in copied] == loaded == ["node.key", "identity.key"]
    assert all(target == f"/run/fedsyn-node/%i/{name}" for name, target in copied)


# Prometheus ----------------------------------------------------------------------------------------------------------


def printed_metrics() -> set[str]:
    """Names of every metric that a node, a SuperLink and a party print."""
    told, budget = set[str](), SpentBudget(0.0, 1.0, 1e-6, 0)
    for service, what, file in (
        ("node", "requests", "node/connection"),
        ("party", "orders", "stores/parties/serving"),
    ):
        told |= {*Health(service, "x", (), Requests(what, "outcome"), budget, figures=_figures(file)).metrics()}
    return told | {*Health("link", "x", (), figures=_figures("deploy/superlink")).metrics()}


def _figures(file: str) -> Metrics:
    """What a service adds to the figures that all have, by its source."""
    source = (ROOT / "fedsyn" / f"{file}.py").read_text("utf-8")
    found = re.findall(r'"(\w+)"\]? ?[:=] \("(gauge|counter)"', source)
    assert len(found) >= 3
    return {name: (kind, "", 0.0) for name, kind in found}


def test_alerts_speak_of_metrics_that_exist() -> None:
    document = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yaml").read_text(encoding="utf-8"))
    rules = [rule for group in document["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules) > 10
    known = printed_metrics()
    for rule in rules:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("page", "warn", "info") and rule["annotations"]["summary"]
        named = set(re.findall(r"\bfedsyn_\w+", rule["expr"]))
        assert named <= known, rule["alert"]
        assert named or 'up{job="fedsyn-' in rule["expr"]
        assert rule["expr"].count("(") == rule["expr"].count(")")
    scrape = yaml.safe_load((DEPLOY / "prometheus" / "scrape.yaml").read_text(encoding="utf-8"))
    jobs = {job["job_name"] for job in scrape["scrape_configs"]}
    assert {*re.findall(r'job="([^"]+)"', json.dumps(rules).replace('\\"', '"'))} <= jobs


# Helm ----------------------------------------------------------------------------------------------------------------


def rendered(chart: Path, **changes: Any) -> list[dict[str, Any]]:
    """What a chart makes of its values."""
    values = yaml.safe_load((chart / "values.yaml").read_text(encoding="utf-8")) | changes
    found = []
    for template in sorted((chart / "templates").glob("*.yaml")):
        text = render(template.read_text(encoding="utf-8"), {"Values": values, "Release": {"Name": "north"}})
        found += [document for document in yaml.safe_load_all(text) if document is not None]
    return found


def render(text: str, scope: dict[str, Any]) -> str:
    """Values with `quote`, `toYaml ... | nindent N`, and blocks of whole lines with `if` and `range`.

    Whatever else stands in braces is an error.
    """
    out: list[str] = []
    lines = iter(text.splitlines())
    for line in lines:
        opened = re.fullmatch(r"\s*\{\{- (if|range) (\S+) \}\}", line)
        if opened is None:
            out.append(re.sub(r"\{\{ (.+?) \}\}", lambda found: value(found[1], scope), line))
            continue
        block = "\n".join(_block(lines))
        given = reached(opened[2], scope)
        items = given if opened[1] == "range" else [scope.get(".")] if given else []
        out += [render(block, scope | {".": item}) for item in items]
    made = "\n".join(out)
    assert "{{" not in made, f"a construct that this renderer does not know: {made[made.index('{{') :][:60]}"
    return made


def _block(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        if re.fullmatch(r"\s*\{\{- end \}\}", line):
            return
        assert "{{- " not in line, "blocks in blocks are not known here"
        yield line
    raise AssertionError("a block without an end")


def reached(path: str, scope: dict[str, Any]) -> Any:
    if path == ".":
        return scope["."]
    found: Any = scope
    for name in path.removeprefix(".").split("."):
        found = found[name]  # KeyError: the values do not have it
    return found


def value(expression: str, scope: dict[str, Any]) -> str:
    if match := re.fullmatch(r"toYaml (\S+) \| nindent (\d+)", expression):
        text = yaml.safe_dump(reached(match[1], scope))
        return "".join(f"\n{' ' * int(match[2])}{line}" for line in text.splitlines())
    path, _, filtered = expression.partition(" | ")
    assert filtered in ("", "quote"), f"unknown function '{filtered}'"
    found = reached(path, scope)
    return json.dumps(str(found)) if filtered else str(found)


def containers(document: dict[str, Any]) -> list[dict[str, Any]]:
    pod = document.get("spec", {}).get("template", {}).get("spec", {})
    return [*pod.get("initContainers", []), *pod.get("containers", [])]


@pytest.mark.parametrize("chart", CHARTS, ids=name_of)
def test_a_chart_makes_one_pod_that_can_do_little(chart: Path) -> None:
    kinds = {document["kind"]: document for document in rendered(chart)}
    assert {"StatefulSet", "PersistentVolumeClaim", "NetworkPolicy"} <= set(kinds)
    spec = kinds["StatefulSet"]["spec"]
    assert spec["replicas"] == 1 and kinds["PersistentVolumeClaim"]["spec"]["accessModes"] == ["ReadWriteOncePod"]
    assert kinds["PersistentVolumeClaim"]["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"] == labels
    assert kinds["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == labels
    assert set(kinds["NetworkPolicy"]["spec"]["policyTypes"]) == {"Ingress", "Egress"}
    pod = spec["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] == 10001
    assert pod["automountServiceAccountToken"] is False
    volumes = {volume["name"] for volume in pod["volumes"]}
    for container in containers(kinds["StatefulSet"]):
        assert "@sha256:" in container["image"]
        context = container["securityContext"]
        assert context["readOnlyRootFilesystem"] and not context["allowPrivilegeEscalation"]
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
    (main,) = (each for each in pod["containers"])
    pages = pages_of(lambda: Health("node", "north", ()))
    assert all(main[probe]["httpGet"]["path"] in pages for probe in ("livenessProbe", "readinessProbe"))
    assert main["readinessProbe"]["httpGet"]["path"] == "/readyz" and main["resources"]["limits"]
    ports = {port["name"]: port["containerPort"] for port in main["ports"]}
    assert main["livenessProbe"]["httpGet"]["port"] in ports
    with pytest.raises(KeyError):
        render("{{ .Values.no.such.key }}", {"Values": {}})


def test_the_holders_chart_has_a_node_file_that_fedsyn_takes() -> None:
    chart = DEPLOY / "helm" / "fedsyn-holder"
    documents = {
        document["kind"]: document for document in rendered(chart, state={"size": "1Gi", "storageClass": "fast"})
    }
    plain = {container["name"] for container in containers(documents["StatefulSet"])}
    assert plain == {"keys", "node"}, "a ledger is made when somebody says so, and never by itself"
    assert documents["PersistentVolumeClaim"]["spec"]["storageClassName"] == "fast"
    node = NodeFile.model_validate(yaml.safe_load(documents["ConfigMap"]["data"]["node.yaml"]))
    Schema.loads(documents["ConfigMap"]["data"]["schema.yaml"])
    main = containers(documents["StatefulSet"])[-1]
    mounted = {mount["mountPath"].removeprefix("/fedsyn/") for mount in main["volumeMounts"]}
    named = [node.key, node.data, node.schema_file, node.identity, node.roster, node.root_certificates, node.state]
    for file in filter(None, named):
        assert file in mounted or file.split("/")[0] in mounted, f"{file} is not mounted"
    assert node.state not in mounted, "a claim's own folder belongs to a group, and a ledger's folder may not"
    assert node.listen is not None and int(node.listen.rpartition(":")[2]) == main["ports"][0]["containerPort"]
    host, _, port = node.superlink.rpartition(":")
    (out, _) = documents["NetworkPolicy"]["spec"]["egress"]
    assert host and out["ports"] == [{"protocol": "TCP", "port": int(port)}]


def test_the_keys_that_the_files_speak_of_exist() -> None:
    assert "listen" in NodeFile.model_fields and "listen_health" in PartyFile.model_fields
