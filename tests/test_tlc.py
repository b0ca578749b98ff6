"""tools/tlc.py gives each module of TLA+ the constants and the invariants that it declares."""

from __future__ import annotations

import re

import pytest

from loadtest.protocols import PROTOCOLS
from loadtest.protocols.search import TEXTS
from tools.tlc import INVARIANTS, MODELS, check, constants, module, tla


@pytest.mark.parametrize("model", PROTOCOLS)
def test_modules_declare_what_they_are_given(model: str) -> None:
    text = (MODELS / f"{module(model)}.tla").read_text()
    (block,) = re.findall(r"^CONSTANTS (.*?)^VARIABLES", text, re.M | re.S)
    declared = set(re.findall(r"\b([A-Z]\w+)\s*(?:,|$)", re.sub(r"\\\*.*", "", block), re.M))
    assert constants(model, TEXTS[model]["rules"]).keys() == declared
    protocol = PROTOCOLS[model]
    for promise in {**protocol.promises, **protocol.promises_at_rest}:
        assert re.search(rf"^{INVARIANTS[promise]} ==", text, re.M)


def test_values_are_written_in_tla() -> None:
    assert tla(True) == "TRUE"
    assert tla({"b", "a"}) == '{"a", "b"}'
    assert tla("naive") == '"naive"'
    assert tla(2) == "2"


def test_no_verdict_without_tlc() -> None:
    with pytest.raises(SystemExit, match="TLC failed on redlock restart"):
        check("/no/such.jar", "redlock", "restart")
