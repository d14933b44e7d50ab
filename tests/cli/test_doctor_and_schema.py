"""`expound doctor` finds the faults of an installation; protocols of human studies are valid by the printed schema."""

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


def test_doctor_names_versions_extras_and_devices(capsys):
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert all(word in said for word in ("torch", "Python", "extra serve", "expound-people", "cpu"))


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


@pytest.mark.parametrize("path", PROTOCOLS, ids=lambda path: path.stem)
def test_the_printed_schema_of_protocols_holds_for_every_one(path, capsys):
    from expound_people.protocol.file import read_protocol

    assert main(["people", "schema"]) == 0
    schema = Draft202012Validator(json.loads(capsys.readouterr().out))
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert list(schema.iter_errors(content)) == []
    assert list(schema.iter_errors(content | {"titel": "a slip"}))
    assert read_protocol(path)[0].title == content["title"]
