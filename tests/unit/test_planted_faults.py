"""The faults of `make faults` can be planted: nobody runs that as often as texts change."""

from __future__ import annotations

from planted_faults import FAULTS, ROOT


def test_every_fault_has_its_text_and_its_tests() -> None:
    times = {name: (ROOT / fault.file).read_text(encoding="utf-8").count(fault.old) for name, fault in FAULTS.items()}
    assert {name: count for name, count in times.items() if count != 1} == {}
    assert [name for name, fault in FAULTS.items() if not (ROOT / "tests" / fault.tests).exists()] == []
    assert all(fault.old != fault.new for fault in FAULTS.values())
