"""The distributed package: the files of the wheel and of the source archive, and imports without the extras."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LARGEST = 1_250_000
"""Bytes that the wheel may have: of 600 modules, 50 templates and scripts, and no data, weights or fonts."""
EXTRAS = {
    "serve": ("fastapi", "uvicorn", "multipart"),
    "cluster": ("ray",),
    "lora": ("peft",),
    "sentencepiece": ("sentencepiece", "google.protobuf"),
    "interactions": ("shapiq", "lightgbm"),
    "quantized": ("bitsandbytes",),
    "inspect": ("inspect_ai",),
    "remote": ("httpx",),
    "dev": (
        "sqlalchemy",
        "alembic",
        "trueskill",
        "psycopg",
        "pytest",
        "hypothesis",
        "mkdocs",
        "jupytext",
        "nbclient",
        "playwright",
    ),
}
INSTALLED = """
import importlib, pkgutil, sys
import expound
assert "torch" not in sys.modules
assert set(expound.__all__) <= set(dir(expound))
for name in expound.__all__:
    getattr(expound, name)
for room in "data explainers metrics models objectives recipes".split():
    assert getattr(expound, room) is sys.modules[f"expound.{room}"]
for module in pkgutil.walk_packages(expound.__path__, "expound.", onerror=lambda name: None):
    if not module.name.startswith(tuple(sys.argv[1].split(","))):
        importlib.import_module(module.name)
print(expound.__file__)
from expound.cli import main
assert main(["methods"]) == main(["doctor"]) == 0
"""
"""Rooms are attributes of the package, importing it loads no torch, all modules are imported, and commands run."""


@pytest.fixture(scope="module")
def dist_folder(tmp_path_factory):
    """The folder with the wheel and the source archive."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", str(folder)], cwd=ROOT, check=True)
    return folder


def wheel_names(folder):
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def test_the_wheel_is_the_package_and_nothing_else(dist_folder):
    (wheel,) = dist_folder.glob("*.whl")
    source = ROOT / "src"
    kept = (path for path in source.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    assert wheel_names(dist_folder) == {str(path.relative_to(source)) for path in kept}
    assert {"expound/py.typed", "expound/reports/templates/report.html.j2"} <= wheel_names(dist_folder)
    assert wheel.stat().st_size < LARGEST


def test_the_source_archive_makes_the_same_wheel(dist_folder, tmp_path):
    (archive,) = dist_folder.glob("*.tar.gz")
    # Not by tarfile: its parameter `filter` is missing in Python 3.11.3, and 3.12 warns where it is not given.
    subprocess.run(["tar", "--extract", "--file", archive, "--directory", tmp_path], check=True)
    (source,) = tmp_path.iterdir()
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", "again"], cwd=source, check=True)
    assert wheel_names(source / "again") == wheel_names(dist_folder)


@pytest.fixture
def clean_python(dist_folder, tmp_path):
    """The Python of an environment with the wheel and its dependencies, without those of extras."""
    venv.create(tmp_path / "clean")
    python, (wheel,) = tmp_path / "clean" / "bin" / "python", dist_folder.glob("*.whl")
    uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--no-deps", "--offline", "--python", python]
    subprocess.run([*uv, str(wheel)], check=True)
    (site,) = (tmp_path / "clean" / "lib").glob("python3*/site-packages")
    absent = {package for packages in EXTRAS.values() for package in packages}
    dependencies = tmp_path / "dependencies"
    dependencies.mkdir()
    for entry in Path(pytest.__file__).parents[1].iterdir():
        name = entry.name.partition("-")[0].partition(".")[0].lower()
        if name not in absent and name != "expound" and not name.startswith(("_editable", "_pytest")):
            (dependencies / entry.name).symlink_to(entry)
    (site / "dependencies.pth").write_text(str(dependencies), encoding="utf-8")
    return python


def test_the_wheel_works_without_any_extra(clean_python, tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*command):
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-1500:]
        return done.stdout

    left_out = "expound.testing,expound.__main__,expound.scorers,expound.serve"
    assert run(clean_python.with_name("expound"), "--version").strip() == "0.1.0"
    shown = run(clean_python, "-c", INSTALLED, left_out)
    assert str(tmp_path) in shown
    assert "integrated_gradients" in shown
    states = {line.split()[1]: line.split()[2] for line in shown.splitlines() if "extra " in line}
    assert states["serve"] != "ok"
    assert states["cluster"] == "ray:"
