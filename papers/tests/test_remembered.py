"""Digests of files are remembered by the files' times and sizes."""

from __future__ import annotations

import os

from expound_papers.runs.digest_cache import load_or_compute


def test_a_file_is_digested_again_only_when_it_has_changed(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file, calls = tmp_path / "data.txt", []

    def compute_digest():
        calls.append(1)
        return {"digest": file.read_text()}

    file.write_text("one")
    assert [load_or_compute("a", [file], compute_digest) for _ in range(3)] == 3 * [{"digest": "one"}]
    assert len(calls) == 1
    load_or_compute("b", [file], compute_digest)
    assert len(calls) == 2
    file.write_text("two")
    os.utime(file, ns=(1, 1))
    assert load_or_compute("a", [file], compute_digest) == {"digest": "two"}
    (tmp_path / "cache").chmod(0o500)
    monkeypatch.setenv("XDG_CACHE_HOME", str(file))
    assert load_or_compute("c", [file], compute_digest) == {"digest": "two"}
