from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import made_up_summaries as made_up
import pytest

from traceml_lite.records.results import Estimate
from traceml_lite.records.summary import NotMeasured, Summary
from traceml_lite.report.jsondoc import plain, summary_document


def test_the_document_is_the_golden_one() -> None:
    golden = (made_up.GOLDEN / "many_workers.json").read_text(encoding="utf-8")
    assert made_up.document("many_workers") == golden, (
        "if this is meant: python tests/report/made_up_summaries.py"
    )


@pytest.mark.parametrize("name", made_up.SUMMARIES)
def test_every_document_is_strict_json(name: str) -> None:
    document = summary_document(made_up.SUMMARIES[name](), made_up.diagnosis())
    assert json.loads(json.dumps(document, allow_nan=False)) == document


def test_the_verdicts_stand_where_the_design_says() -> None:
    diagnosis = summary_document(made_up.saturated(), made_up.diagnosis())["diagnosis"]
    assert diagnosis["shape"]["key"] == "saturated_pool"
    assert diagnosis["shape"]["confidence"] == 0.97
    assert diagnosis["cost"]["key"] == "inconclusive"
    assert diagnosis["evidence"][0]["state"] == "supported"


def test_without_a_diagnosis_its_place_says_why() -> None:
    assert summary_document(made_up.saturated())["diagnosis"] == {
        "value": None,
        "reason": "no diagnosis was made",
    }


def test_every_field_of_the_summary_is_in_the_document() -> None:
    document = summary_document(made_up.saturated())
    assert {field.name for field in fields(Summary)} <= set(document)


@pytest.mark.parametrize("name", made_up.SUMMARIES)
def test_every_missing_number_has_a_reason_beside_it(name: str) -> None:
    for found in _values(summary_document(made_up.SUMMARIES[name]())):
        assert (found["value"] is None) == bool(found.get("reason"))


def _values(document: Any) -> list[dict[str, Any]]:
    if isinstance(document, list):
        return [found for item in document for found in _values(item)]
    if not isinstance(document, dict):
        return []
    inner = [found for item in document.values() for found in _values(item)]
    return [document, *inner] if "value" in document else inner


def test_facts_that_are_not_known_are_null_with_a_reason() -> None:
    config = summary_document(made_up.no_workers())["subject"]["config"]
    assert config["prefetch_factor"] is None
    assert config["null_reasons"]["prefetch_factor"] == "none with num_workers=0"
    assert config["null_reasons"]["dataset_len"] == "not known"


def test_a_number_carries_its_interval_and_what_it_rests_on() -> None:
    assert plain(Estimate(0.5, 0.4, 0.6, 0.95, 12, "how")) == {
        "value": 0.5,
        "low": 0.4,
        "high": 0.6,
        "level": 0.95,
        "n": 12,
        "method": "how",
    }
    assert plain(NotMeasured("why")) == {"value": None, "reason": "why"}


def test_a_type_that_no_record_has_is_refused() -> None:
    with pytest.raises(TypeError, match="no JSON for object"):
        plain(object())
