"""`expound people export` and `schema`: the answers of a study, and the form of protocols."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from expound.cli.shared.console import say
from expound.errors import ExpoundError
from expound_people.cli.shared import StorageUrl, open_storage


def export(
    name: Annotated[str, typer.Argument(help="Name of the study.")],
    files: Annotated[
        list[str] | None, typer.Argument(help="Files to write, such as answers.csv. Default: all that the study has.")
    ] = None,
    output_dir: Annotated[Path, typer.Option("--output-dir", "-o", help="Folder of the files.")] = Path(),
    storage: StorageUrl = None,
) -> None:
    """Write a study's answers, findings and rationales as files; those that its page offers.

    Examples: expound people export films --output-dir films

    expound people export films answers.csv results.json
    """
    from expound.data.atomic_files import atomic_file
    from expound_people.exports import get_exports, run_export
    from expound_people.projects import find_project

    with open_storage(storage).read_session() as session:
        project = find_project(session, name)
        output_dir.mkdir(parents=True, exist_ok=True)
        for file in files or get_exports(project):
            try:
                _, content = run_export(session, project, file)
            except ExpoundError as error:
                # A study without answers has no figure, for example; the other files are still wanted.
                if files:
                    raise
                say(f"{file}: {error}")
                continue
            with atomic_file(output_dir / file) as fresh:
                fresh.write_bytes(content)
            say(f"{output_dir / file}: {len(content)} bytes")


def schema() -> None:
    """Print the JSON Schema of study protocols, for editors.

    Refer to it in the first line of a protocol: `# yaml-language-server: $schema=FILE`.

    Example: expound people schema
    """
    from expound_people.protocol.file import Protocol

    typer.echo(json.dumps(Protocol.model_json_schema(), indent=2, ensure_ascii=False))
