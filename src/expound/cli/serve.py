"""`expound serve`: explore explanations in the browser, browse results, run human studies."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from expound.cli.shared import options
from expound.cli.shared.checks import check
from expound.cli.shared.console import say, silence_libraries
from expound.cli.shared.stopping import set_stop_message
from expound.cli.shared.threads import Threads, hidden_size, set_threads
from expound.errors import ExpoundError
from expound_people.cli.study import LIMIT, StudyMaterial, StudyPlan, find_saved_explanations, make_study, open_storage

if TYPE_CHECKING:
    from expound.models import ExplainedModel

TOKEN, API_TOKEN = "EXPOUND_ADMIN_TOKEN", "EXPOUND_API_TOKEN"
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  # only compared, never bound
"""Wildcard addresses, and the address that reaches them from the machine itself."""


def serve(
    model: Annotated[list[str] | None, typer.Option("--model", "-m", help="A model to explore; repeatable.")] = None,
    result: Annotated[
        list[Path] | None,
        typer.Option(
            "--result",
            "-r",
            help="A result folder of compare, explain or study to browse, or to make a human study from; repeatable.",
        ),
    ] = None,
    study: Annotated[
        str | None,
        typer.Option(help="Name of the human study; a new one is made from --result, or from --model and --data."),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            help="Kind of a new study: rank explanations, highlight evidence, simulate the model, or predict its "
            "answers to changed examples (counterfactual). Default: rank."
        ),
    ] = None,
    protocol: Annotated[
        Path | None, typer.Option(help="A study protocol (YAML): participants, instructions and questions.")
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(help="Database of studies: sqlite:///FILE or postgresql://… Default: expound-studies.db."),
    ] = None,
    data: Annotated[
        str | None, typer.Option("--data", "-d", help="Examples to explore, or to make a study from.")
    ] = None,
    split: options.SplitOrAll = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Number of examples of a new study. Default: the protocol's, or 20.")
    ] = None,
    methods: options.Methods = None,
    task: options.Task = None,
    api: Annotated[
        bool,
        typer.Option(
            "--api", help="Also serve the language models by OpenAI's protocol at /v1, with citations of documents."
        ),
    ] = False,
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 accepts other machines that use a --name.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", "-p", min=0, max=65535, help="Port; 0 chooses a free port.")] = 8000,
    name: Annotated[
        list[str] | None,
        typer.Option(
            help="Host name or URL of the server for browsers, such as study.example.org or https://study.example.org; "
            "invitations use the first one. Repeatable."
        ),
    ] = None,
    seed: options.Seed = 0,
    device: options.Device = None,
    dtype: options.Dtype = None,
    max_length: options.MaxLength = None,
    threads: Threads = None,
) -> None:
    """Serve web pages: explore explanations, browse results, run human studies.

    By default only this machine can connect, with the token in the printed address. The environment variable
    EXPOUND_ADMIN_TOKEN sets a fixed token. Annotators use invitation links, which the page of a study creates; put an
    HTTPS server in front of it if they connect from outside.

    With --api, programs ask the language models through /v1/chat/completions, for example with the openai package.
    They send documents along, and the answer's annotations name the sources of each sentence. They need the API token
    that is printed, or the one in the environment variable EXPOUND_API_TOKEN; it does not open the pages.

    Examples: expound serve --model my-model --data generated --port 8000

    expound serve --model my-chat-model --task generation

    expound serve --model my-chat-model --api

    expound serve --result comparison --result runs

    expound serve --result comparison --study films --kind rank --host 0.0.0.0 --name study.example.org

    expound serve --result explained --study notes

    expound serve --protocol study.yaml --host 0.0.0.0 --name https://study.example.org
    """
    if not (model or result or storage) and study is None and protocol is None:
        raise ExpoundError("nothing to serve: give --model, --result, --study or --protocol")
    plan = None
    if protocol is not None:
        plan = StudyPlan.of(protocol, study, kind)
        study, kind, source = plan.name, plan.protocol.kind, plan.protocol.source
        if not model and not result and source.model:
            model = [source.model]
        data, limit = data or source.data, limit or source.limit
        methods, split, seed = methods or ",".join(source.methods) or None, split or source.split, plan.protocol.seed
    if api:
        task = _require_language_model(model, task)
    check(models=model or [], data=data, methods=methods, device=device, dtype=dtype, files=result or [])
    _require_web()
    import uvicorn

    from expound.evaluation.compare.compare import list_native_methods
    from expound.serve import Site
    from expound.serve.app import make_server_config
    from expound.serve.browse.stored import open_results

    silence_libraries()
    sources = _name_models(model or [])
    explained = _load_models(sources, threads, device, dtype=dtype, max_length=max_length, task=task)
    specs = options.split_ids(methods) or []
    if specs == ["all"]:
        specs = list_native_methods()
    rows = _load_rows(data, split, None if study is None else limit or LIMIT, seed, explained)
    saved = find_saved_explanations(result or (), study)
    results = open_results([folder for folder in result or () if folder not in saved])
    studies = open_storage(storage) if study is not None or storage else None
    if study is not None and studies is not None:
        material = StudyMaterial(explained, specs, rows, results, limit or LIMIT, seed, sources, data, saved)
        make_study(studies, study, kind, material, None if plan is None else plan.text)
    token = os.environ.get(TOKEN) or secrets.token_urlsafe(32)
    names = [*(name or []), EVERYWHERE.get(host, host)]
    hosts = (*LOOPBACK, *map(_url_host, names))
    socket = uvicorn.Config("", host=host, port=port).bind_socket()
    # A program may connect as soon as it has read the address, before the server accepts connections.
    socket.listen()
    address = _public_address(names[0], socket.getsockname()[1])
    services = _make_services(explained, sources, specs, rows, seed, task, address if api else None)
    site = Site(token, results=results, storage=studies, hosts=hosts, address=address, study=study, **services)
    config = make_server_config(site, host, port)
    if host in EVERYWHERE and not name:
        say("other machines are refused: give the host name or address that their browsers use with --name")
    if plan is not None:
        say(f"annotators take part at: {address}/take/{quote(plan.name)}{plan.parameters}")
        say(f"protocol (SHA-256): {plan.digest}")
    say(f"open: {address}/sign-in?token={token}")
    set_stop_message("answers of studies are saved: start the server again with the same command")
    uvicorn.Server(config).run(sockets=[socket])


def _require_language_model(models: Sequence[str] | None, task: str | None) -> str:
    """Return the task of the API's models. Raises ExpoundError for another one, or without a model."""
    if not models or task not in (None, "generation"):
        raise ExpoundError("--api serves language models: give --model, with --task generation or without --task")
    return "generation"


def _choose_api_token(address: str) -> str:
    """Print the address of the API; return the token in the environment, else print and return a new one."""
    say(f"API: {address}/v1")
    token = os.environ.get(API_TOKEN)
    if not token:
        token = secrets.token_urlsafe(32)
        say(f"API token: {token}")
    return token


def _url_host(name: str) -> str:
    """Return the host of a name or address as in a URL: without port, and IPv6 in brackets."""
    host = name.partition("://")[2] or name
    if host.count(":") > 1 and "]:" not in host:
        return f"[{host.strip('[]')}]"
    return re.sub(r":[0-9]+$", "", host.rstrip("/")).lower()


def _public_address(name: str, port: int) -> str:
    """Return the URL for browsers: the given address, or the host name with the server's port."""
    if "://" in name:
        return name.rstrip("/")
    return f"http://{_url_host(name)}:{port}"


def _require_web() -> None:
    try:
        import fastapi
        import sqlalchemy
        import uvicorn
    except ModuleNotFoundError as error:
        raise ExpoundError(f"the pages need the package {error.name}: pip install 'expound[serve]'") from error
    del fastapi, sqlalchemy, uvicorn


def _name_models(models: Sequence[str]) -> dict[str, str]:
    """Return the models by the last part of their path; equal names get a number.

    Raises:
        ExpoundError: a model is behind a server.
    """
    from expound.models.loading.remote import is_address

    names: dict[str, str] = {}
    for source in models:
        if is_address(source):
            raise ExpoundError("pages need a model's weights: explain a model behind a server with `expound explain`")
        short = source.rstrip("/").rpartition("/")[2]
        if short in names:
            short += f" {len(names) + 1}"
        names[short] = source
    return names


def _load_models(
    sources: Mapping[str, str], threads: int | None, device: str | None, **loading: Any
) -> dict[str, ExplainedModel]:
    """Load the models, and set the number of threads for the largest of them."""
    import expound

    models, largest = {}, 0
    for name, source in sources.items():
        models[name] = expound.load(source, device=device, **loading)
        largest = max(largest, hidden_size(models[name]) or 0)
    if models:
        set_threads(threads, largest, device)
    return models


def _load_rows(
    data: str | None, split: str | None, limit: int | None, seed: int, models: Mapping[str, ExplainedModel]
) -> list[dict[str, Any]]:
    """Return the examples, with label numbers and names of the first model."""
    import expound

    if data is None:
        return []
    dataset = expound.load_data(data, split, limit=limit, seed=seed)
    if not models:
        raise ExpoundError("--data needs a --model")
    from expound.evaluation.compare.compare import add_label_names
    from expound.models.encoding.labels import renumber_labels

    model = next(iter(models.values()))
    if model.task.name == "generation":
        return list(dataset)
    rows = renumber_labels(model, dataset)
    return add_label_names(model, rows)


def _make_services(
    models: Mapping[str, ExplainedModel],
    sources: Mapping[str, str],
    methods: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
    seed: int,
    task: str | None,
    api_address: str | None,
) -> dict[str, Any]:
    """Return the service that explains the models; language models have one with trained citations, and an API."""
    from expound.serve.explore.service import Explorer

    if not models:
        return {}
    own = {}
    for name, source in sources.items():
        if task == "generation" and (Path(source) / "citation").is_dir():
            own[name] = f"citation:{source}"
    services: dict[str, Any] = {"explorer": Explorer(models, methods, rows, seed=seed, trained_methods=own)}
    if api_address is not None:
        services["api_token"] = _choose_api_token(api_address)
    return services
