"""`expound doctor` finds the faults of an installation."""

from __future__ import annotations

from importlib import import_module

from expound.cli import main


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
