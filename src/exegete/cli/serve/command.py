"""`exegete serve`: explore explanations in the browser, browse results, and let people judge."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast
from urllib.parse import quote

import typer

from exegete.cli.serve.study import LIMIT, Material, Plan, make_study, open_storage, saved_among
from exegete.cli.shared import options
from exegete.cli.shared.checks import check
from exegete.cli.shared.console import hush, say
from exegete.cli.shared.stopping import keeping
from exegete.cli.shared.threads import Threads, choose, hidden_size
from exegete.errors import ExegeteError

if TYPE_CHECKING:
    from exegete.models import ExplainedModel

TOKEN = "EXEGETE_ADMIN_TOKEN"
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  (names, nothing is bound)
"""Addresses that stand for all of a machine's, and how the machine itself gets there."""


def serve(
    model: Annotated[
        list[str] | None, typer.Option("--model", "-m", help="A model to explore; may be repeated.")
    ] = None,
    result: Annotated[
        list[Path] | None,
        typer.Option(
            "--result",
            "-r",
            help="A folder of compare, explain --data or study to browse, or of explain --output-dir to make a study "
            "of; may be repeated.",
        ),
    ] = None,
    study: Annotated[
        str | None,
        typer.Option(
            "--study", help="Serve this human study; a new one is made of --result, or of --model and --data."
        ),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            "--kind",
            help="Of a new study: rank explanations, highlight evidence, simulate the model, or foretell its answer to "
            "changed examples (counterfactual). Default: rank.",
        ),
    ] = None,
    protocol: Annotated[
        Path | None,
        typer.Option("--protocol", help="A study's protocol (YAML): who may take part, what they read and are asked."),
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(
            "--storage",
            help="Where studies are kept: sqlite:///FILE or postgresql://… Default: exegete-studies.db here.",
        ),
    ] = None,
    data: Annotated[
        str | None, typer.Option("--data", "-d", help="Examples to explore, and to make a study of.")
    ] = None,
    split: options.SplitOrAll = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Examples of a new study. Default: the protocol's, or 20.")
    ] = None,
    methods: options.Methods = None,
    task: options.Task = None,
    host: Annotated[
        str,
        typer.Option("--host", help="The address to listen at; 0.0.0.0 lets other machines in that use a --name."),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", "-p", min=0, max=65535, help="The port; 0: a free one.")] = 8000,
    name: Annotated[
        list[str] | None,
        typer.Option(
            "--name",
            help="A host name or address under which browsers reach the server, as study.example.org or "
            "https://study.example.org; invitations begin with the first. May be repeated.",
        ),
    ] = None,
    seed: options.Seed = 0,
    device: options.Device = None,
    dtype: options.Dtype = None,
    max_length: options.MaxLength = None,
    threads: Threads = None,
) -> None:
    """Serve pages: explore a model's explanations, browse results, let people rank explanations blind.

    Only this machine is let in unless --host says otherwise, and only with the token in the printed address. The
    variable EXEGETE_ADMIN_TOKEN sets a token that stays the same. Other people reach a study by invitation links, which
    its page makes; put a server that speaks HTTPS in front where they come from outside.

    Examples: exegete serve --model my-model --data generated --port 8000

    exegete serve --model my-chat-model --task generation

    exegete serve --result comparison --result runs

    exegete serve --result comparison --study films --kind rank --host 0.0.0.0 --name study.example.org

    exegete serve --result explained --study notes

    exegete serve --protocol study.yaml --host 0.0.0.0 --name https://study.example.org
    """
    if not (model or result or storage) and study is None and protocol is None:
        raise ExegeteError("there is nothing to serve: give --model, --result, --study or --protocol")
    plan = None if protocol is None else Plan.of(protocol, study, kind)
    if plan is not None:
        study, kind, source = plan.name, plan.protocol.kind, plan.protocol.source
        model, data = model or ([source.model] if source.model and not result else None), data or source.data
        methods, split, seed = methods or ",".join(source.methods) or None, split or source.split, plan.protocol.seed
        limit = limit or source.limit
    check(models=model or [], data=data, methods=methods, device=device, dtype=dtype, files=result or [])
    _require_web()
    import uvicorn

    import exegete
    from exegete.studies.compare.compare import list_native_methods
    from exegete.web import Site
    from exegete.web.browse.stored import open_results
    from exegete.web.server import configuration

    hush()
    sources = _named(model or [])
    loaded: dict[str, Any] = {"device": device, "dtype": dtype, "max_length": max_length}
    loaded |= {} if task is None else {"task": task}
    explained = {short: exegete.load(source, **loaded) for short, source in sources.items()}
    specs = options.split_ids(methods) or []
    if explained:
        choose(threads, max(hidden_size(each) or 0 for each in explained.values()), device)
    specs = list_native_methods() if specs == ["all"] else specs
    rows = _examples(data, split, None if study is None else limit or LIMIT, seed, explained)
    saved = saved_among(result or (), study)
    results = open_results([folder for folder in result or () if folder not in saved])
    kept = open_storage(storage) if study is not None or storage else None
    if study is not None and kept is not None:
        made = Material(explained, specs, rows, results, limit or LIMIT, seed, sources, data, saved)
        make_study(kept, study, kind, made, None if plan is None else plan.text)
    token = os.environ.get(TOKEN) or secrets.token_urlsafe(32)
    names = [*(name or []), EVERYWHERE.get(host, host)]
    hosts = (*LOOPBACK, *(_in_address(each) for each in names))
    socket = uvicorn.Config("", host=host, port=port).bind_socket()
    address = _address(names[0], socket.getsockname()[1])
    rooms = _rooms(explained, sources, specs, rows, seed, task)
    site = Site(token, results=results, storage=kept, hosts=hosts, address=address, **rooms)
    config = configuration(site, host, port)
    if host in EVERYWHERE and not name:
        say("other machines are refused: say with --name by which name or address their browsers reach this one")
    if plan is not None:
        say(f"people take part at: {address}/take/{quote(plan.name)}{plan.parameters}")
        say(f"protocol (SHA-256): {plan.digest}")
    say(f"open: {address}/sign-in?token={token}")
    keeping("answers of studies are kept, and the same command serves again")
    uvicorn.Server(config).run(sockets=[socket])


def _in_address(name: str) -> str:
    """The host of a name or address as it stands in an address, where IPv6 has brackets; without a port."""
    host = name.partition("://")[2] or name
    if host.count(":") > 1 and "]:" not in host:
        return f"[{host.strip('[]')}]"
    return re.sub(r":[0-9]+$", "", host.rstrip("/")).lower()


def _address(name: str, port: int) -> str:
    """Where browsers go: the address that was given, or the name with the port that the server listens at."""
    return name.rstrip("/") if "://" in name else f"http://{_in_address(name)}:{port}"


def _require_web() -> None:
    try:
        import fastapi
        import sqlalchemy
        import uvicorn
    except ModuleNotFoundError as error:
        raise ExegeteError(f"the pages need the package {error.name}: pip install 'exegete[web]'") from error
    del fastapi, sqlalchemy, uvicorn


def _named(models: Sequence[str]) -> dict[str, str]:
    """Models by the last part of their name."""
    found: dict[str, str] = {}
    for source in models:
        short = source.rstrip("/").rpartition("/")[2]
        found[short if short not in found else f"{short} {len(found) + 1}"] = source
    return found


def _examples(
    data: str | None, split: str | None, limit: int | None, seed: int, models: Mapping[str, ExplainedModel]
) -> list[dict[str, Any]]:
    """The rows of the data, labels in the first model's numbers and by name."""
    import exegete

    if data is None:
        return []
    dataset = exegete.load_data(data, split, limit=limit, seed=seed)
    if not models:
        raise ExegeteError("--data needs a --model to explain it")
    from exegete.models.encoding.labels import renumber_labels
    from exegete.studies.compare.compare import add_label_names

    model = next(iter(models.values()))
    if model.task.name == "generation":
        return list(dataset)
    rows = renumber_labels(model, dataset)
    return add_label_names(model, rows)


def _rooms(
    models: Mapping[str, ExplainedModel],
    sources: Mapping[str, str],
    methods: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
    seed: int,
    task: str | None,
) -> dict[str, Any]:
    """The room where models are explained: language models have one of their own, and bring trained citations."""
    from exegete.web.chat.service import Chats
    from exegete.web.explore.service import Explorer

    if task != "generation":
        return {"explorer": Explorer(models, methods, rows, seed=seed) if models else None}
    trained = {name: source for name, source in sources.items() if (Path(source) / "citation").is_dir()}
    own = {name: f"citation:{source}" for name, source in trained.items()}
    return {"chats": Chats(cast(Any, models), methods, rows, seed=seed, own=own)}
