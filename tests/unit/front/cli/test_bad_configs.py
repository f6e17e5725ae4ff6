"""Bad configurations: exit code 2, one sentence that helps, nothing spent."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedsyn.config import RunConfig
from support.bad_inputs import CONFIG, Try, bad, by_kind, check_each, furnish

#: What --set says, and the words of the answer; misspelt keys are in test_mistyped.py.
SETS = [
    ("privacy.epsilon=0", "privacy.epsilon", "greater than 0"),
    ("privacy.epsilon=-1", "privacy.epsilon", "greater than 0"),
    ("privacy.epsilon=.nan", "privacy.epsilon", "finite number"),
    ("privacy.epsilon=.inf", "privacy.epsilon", "finite number"),
    ("privacy.epsilon=1001", "privacy.epsilon", "less than or equal to 1000"),
    ("privacy.epsilon=one", "privacy.epsilon", "number"),
    ("privacy.epsilon=[1]", "privacy.epsilon", "number"),
    ("privacy.epsilon=true", "epsilon must be a number, not true"),
    ("privacy.epsilon=1e-300", "privacy: epsilon", "too small"),
    ("privacy.epsilon=null", "privacy.epsilon", "number"),
    ("privacy.delta=0", "privacy.delta", "greater than 0"),
    ("privacy.delta=1", "privacy.delta", "less than 1"),
    ("privacy.delta=1e-300", "privacy: delta", "too small"),
    ("privacy.delta=.nan", "privacy.delta", "finite number"),
    ("privacy.client_sizes=secret", "privacy.client_sizes", "'public' or 'private'"),
    ("privacy.size_share=1", "privacy.size_share", "less than 1"),
    ("mechanism.name=augflame", "unknown mechanism 'augflame'", "did you mean 'augflaim'"),
    ("mechanism.name=5", "mechanism.name"),
    ("mechanism.name=null", "mechanism.name"),
    ("mechanism=[]", "mechanism", "expected"),
    ("mechanism.rounds=0", "rounds", "greater than"),
    ("mechanism.rounds=-3", "rounds", "greater than"),
    ("mechanism.rounds=1.5", "rounds", "whole number"),
    ("mechanism.rounds=many", "rounds", "whole number"),
    ("mechanism.rounds=100000", "rounds", "less than or equal to 10000"),
    ("mechanism.round=3", "round", "did you mean 'rounds'"),
    ("federation.clients=0", "federation.clients", "greater than or equal to 1"),
    ("federation.clients=1e99", "federation.clients"),
    ("federation.clients=two", "federation.clients", "whole number"),
    ("federation.sampling_rate=0", "federation.sampling_rate", "greater than 0"),
    ("federation.sampling_rate=1.5", "federation.sampling_rate", "less than or equal to 1"),
    ("federation.minimum_cohort=9", "minimum_cohort", "must not exceed clients"),
    ("federation.timeout=-1", "federation.timeout", "greater than 0"),
    ("federation.partition=idd", "idd", "did you mean 'iid'"),
    ("federation.partition=[iid]", "federation.partition", "expected"),
    ("federation.partition={name: iid, beta: 3}", "beta"),
    ("federation.columns=[[age], [age]]", "columns"),
    ("workload.degree=0", "workload.degree", "greater than or equal to 1"),
    ("workload.degree=9", "workload.degree", "less than or equal to 8"),
    ("workload.size=0", "workload.size", "greater than or equal to 1"),
    ("workload.cliques=[[age, jbo]]", "jbo", "did you mean 'job'"),
    ("workload.cliques=[]", "workload.cliques"),
    ("workload.cliques=[[]]", "workload"),
    ("workload.cliques=age", "workload.cliques"),
    ("evaluation=[workload_eror]", "workload_eror", "did you mean 'workload_error'"),
    ("evaluation=[auc]", "auc"),
    ("evaluation={auc: 1}", "evaluation"),
    ("evaluation=5", "evaluation"),
    ("data.source=adlut", "adlut", "did you mean 'adult'"),
    ("data.source=absent.csv", "absent.csv", "no such file"),
    ("data.source=row.csv", "row.csv", "did you mean 'rows.csv'"),
    ("data.source=run.yaml", "run.yaml"),
    ("data.source=.", "folder"),
    ("data.source=''", "empty"),
    ("data.source=[]", "data.source"),
    ("data.source=[rows.csv, 5]", "data.source"),
    ("data.source=null", "data.source"),
    ("data.schema=absent.yaml", "absent.yaml", "no such file"),
    ("data.schema=rows.csv", "rows.csv"),
    ("data.schema=run.yaml", "run.yaml", "columns"),
    ("data.label=smoke", "smoke", "did you mean 'smokes'"),
    ("data.bins=0", "data.bins", "greater than or equal to 1"),
    ("data.bins=99999999", "data.bins", "less than or equal to 65535"),
    ("data.sample=0", "data.sample", "greater than 0"),
    ("data.test_fraction=1", "data.test_fraction", "less than 1"),
    ("data.options={seperator: ;}", "seperator", "did you mean 'separator'"),
    ("data.options.separator=;;", "separator", "one character"),
    ("data.options.encoding=klingon", "encoding", "utf-8"),
    ("data.options.decimal=x", "decimal"),
    ("data.options.sheet=1", "sheet"),
    ("aggregation.protocol=magic", "aggregation.protocol"),
    ("aggregation.noise=loud", "aggregation.noise"),
    ("inference.max_cells=0", "inference.max_cells", "greater than or equal to 1"),
    ("inference.iterations=0", "inference.iterations", "greater than or equal to 1"),
    ("synthesis.rows=0", "synthesis.rows", "greater than or equal to 1"),
    ("synthesis.rows=-5", "synthesis.rows", "greater than or equal to 1"),
    ("synthesis.rows=100000000000", "synthesis.rows", "less than or equal to 1000000000"),
    ("synthesis.rows=1.5", "synthesis.rows", "whole number"),
    ("synthesis.format=xlsx", "synthesis.format", "'csv' or 'parquet'"),
    ("runtime.seed=-1", "runtime.seed", "greater than or equal to 0"),
    ("runtime.engine=cloud", "runtime.engine", "'inprocess'"),
    ("runtime.engine=deployment", "evaluation"),
    ("runtime=fast", "runtime", "expected keys"),
    ("privacy", "KEY.KEY=VALUE"),
    ("=3", "KEY.KEY=VALUE"),
    (".epsilon=3", "epsilon"),
    ("privacy.epsilon={", "not valid YAML"),
    ("privacy.epsilon.value=1", "privacy.epsilon.value", "is a value"),
    ("rounds=3", "rounds"),
]
#: The whole configuration, and the words of the answer.
FILES = [
    ("", "it is empty"),
    ("- a\n- b\n", "found a list"),
    ("just text\n", "found one value"),
    ("\t{}\n", "not valid YAML", "tab"),
    ("privacy:\n\tepsilon: 1\n", "line 2", "tab"),
    (CONFIG + "privacy: {epsilon: 2.0, delta: 1.0e-5}\n", "'privacy' is given twice", "lines 4 and 7"),
    (CONFIG.replace("epsilon: 4.0", "epsilon: 4.0, epsilon: 2"), "'epsilon' is given twice"),
    (CONFIG + "epsilon: 1\n", "'epsilon' is given twice"),
    (CONFIG.replace("privacy: {epsilon: 4.0, delta: 1.0e-5}\n", ""), "missing key 'privacy'", "epsilon: 1"),
    (CONFIG.replace(", delta: 1.0e-5", ""), "missing key 'privacy.delta'"),
    (CONFIG.replace("data: {source: rows.csv, schema: schema.yaml}\n", ""), "missing key 'data'"),
    (CONFIG.replace("source: rows.csv, ", ""), "missing key 'data.source'"),
    (CONFIG + "format: 99\n", "format"),
    (CONFIG + "format: old\n", "format"),
    (CONFIG + "1: 2\n", "text"),
    (CONFIG + "data2: {}\n", "unknown key 'data2'"),
    (CONFIG.replace("{epsilon: 4.0, delta: 1.0e-5}", "strong"), "privacy: expected keys"),
    (CONFIG.replace("4.0", "4,0"), "privacy"),
    (CONFIG.replace("}", ""), "not valid YAML"),
    (CONFIG + "x: !!python/object/apply:os.system [true]\n", "not valid YAML"),
    (CONFIG + "a: &a [*a]\n", "not valid YAML"),
    ("[" * 3000, "bad.yaml"),
]


@pytest.fixture
def attempt(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Try:
    return lambda cases: check_each(cases, tmp_path, furnish, capsys, monkeypatch)


def section_of(said: tuple[str, ...]) -> str:
    """The section of the configuration that a case is about, or `syntax`."""
    section = said[0].partition("=")[0].partition(".")[0]
    return section if section in RunConfig.model_fields else "syntax"


@pytest.mark.parametrize("cases", by_kind(SETS, section_of).values(), ids=by_kind(SETS, section_of))
def test_a_key_that_is_set_wrongly(cases: list[tuple[str, ...]], attempt: Try) -> None:
    attempt(bad(f'run run.yaml --out out --set "{typed}"', *says) for typed, *says in cases)


def test_a_configuration_that_is_written_wrongly(attempt: Try) -> None:
    attempt(bad("run bad.yaml", *says, files={"bad.yaml": text}) for text, *says in FILES)
