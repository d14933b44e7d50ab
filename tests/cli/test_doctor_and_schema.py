"""`expound doctor` finds the faults of an installation; every study file is valid by the schema."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from expound.cli import main

FOLDER = Path(__file__).parents[2] / "papers" / "studies"
PROTOCOLS = sorted((FOLDER / "people").glob("*.yaml"))
STUDIES = sorted(path for path in {*FOLDER.rglob("*.yaml")} - {*PROTOCOLS} if path.stem != "papers")


@pytest.fixture(scope="module")
def validator():
    from expound_papers.spec.schema import make_json_schema

    Draft202012Validator.check_schema(make_json_schema())
    return Draft202012Validator(make_json_schema())


def test_doctor_names_versions_extras_and_devices(capsys):
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert all(word in said for word in ("torch", "Python", "extra web", "cpu"))


def test_doctor_names_what_is_missing_or_too_old_and_ends_with_1(monkeypatch, capsys):
    versions = {"torch": "1.0", "transformers": ""}
    module = import_module("expound.cli.doctor")
    found = module._installed
    monkeypatch.setattr(module, "_installed", lambda name: versions.get(name, found(name)))
    assert main(["doctor"]) == 1
    said = capsys.readouterr()
    assert "needs >=2.8" in said.out
    assert "missing" in said.out
    assert "missing or too old: torch, transformers" in said.err


def test_schema_command_prints_json(capsys):
    assert main(["study", "schema"]) == 0
    assert "judgements" in json.loads(capsys.readouterr().out)["properties"]


@pytest.mark.parametrize("file", STUDIES, ids=lambda file: file.stem)
def test_every_study_file_keeps_the_schema(file, validator):
    wrong = [f"{error.json_path}: {error.message}" for error in validator.iter_errors(yaml.safe_load(file.read_text()))]
    assert not wrong


def test_the_schema_refuses_keys_and_types_that_studies_refuse(validator):
    assert not validator.is_valid({"recipe": {}})
    assert not validator.is_valid({"datasets": {"films": {"spec": 3}}})
    assert not validator.is_valid({"judgements": {"own": {"metric": ["auc"]}}})
    assert validator.is_valid({"seeds": 3, "metrics": ["auc"], "explainers": {"A": "occlusion"}})


@pytest.mark.parametrize("path", PROTOCOLS, ids=lambda path: path.stem)
def test_the_printed_schema_of_protocols_holds_for_every_one(path, capsys):
    from expound_people.protocol.file import read_protocol

    assert main(["people", "schema"]) == 0
    schema = Draft202012Validator(json.loads(capsys.readouterr().out))
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert list(schema.iter_errors(content)) == []
    assert list(schema.iter_errors(content | {"titel": "a slip"}))
    assert read_protocol(path)[0].title == content["title"]
