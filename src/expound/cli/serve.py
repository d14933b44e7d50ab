"""`expound serve`: explore explanations in the browser, and answer programs with citations."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from expound.cli.shared import options
from expound.cli.shared.checks import check
from expound.cli.shared.console import say, silence_libraries
from expound.cli.shared.server import Host, Names, Port, listen, require_web
from expound.cli.shared.threads import Threads, hidden_size, set_threads
from expound.errors import ExpoundError

if TYPE_CHECKING:
    from expound.models import ExplainedModel

API_TOKEN = "EXPOUND_API_TOKEN"


def serve(
    model: Annotated[list[str] | None, typer.Option("--model", "-m", help="A model to explore; repeatable.")] = None,
    data: Annotated[str | None, typer.Option("--data", "-d", help="Examples to explore.")] = None,
    split: options.SplitOrAll = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Number of examples to explore. Default: all.")] = None,
    methods: options.Methods = None,
    task: options.Task = None,
    api: Annotated[
        bool,
        typer.Option(
            "--api", help="Also serve the language models by OpenAI's protocol at /v1, with citations of documents."
        ),
    ] = False,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    name: Names = None,
    seed: options.Seed = 0,
    device: options.Device = None,
    dtype: options.Dtype = None,
    max_length: options.MaxLength = None,
    threads: Threads = None,
) -> None:
    """Serve web pages on which models are explored, and an API that cites.

    By default only this machine can connect, with the token in the printed address. The environment variable
    EXPOUND_ADMIN_TOKEN sets a fixed token.

    With --api, programs ask the language models through /v1/chat/completions, for example with the openai package.
    They send documents along, and the answer's annotations name the sources of each sentence. They need the API token
    that is printed, or the one in the environment variable EXPOUND_API_TOKEN; it does not open the pages.

    Human studies are served by `expound people serve`, of the package expound-people.

    Examples: expound serve --model my-model --data generated --port 8000

    expound serve --model my-chat-model --task generation

    expound serve --model my-chat-model --api
    """
    if not model:
        raise ExpoundError("nothing to serve: give --model")
    if api and task not in (None, "generation"):
        raise ExpoundError("--api serves language models: give --model, with --task generation or without --task")
    if api:
        task = "generation"
    check(models=model, data=data, methods=methods, device=device, dtype=dtype)
    require_web()
    from expound.evaluation.compare.choice import list_native_methods
    from expound.serve import Site

    silence_libraries()
    sources = name_models(model)
    explained = load_models(sources, threads, device, dtype=dtype, max_length=max_length, task=task)
    specs = options.split_ids(methods) or []
    if specs == ["all"]:
        specs = list_native_methods()
    rows = load_rows(data, split, limit, seed, explained)
    listener = listen(host, port, name)
    services = _make_services(explained, sources, specs, rows, seed, task, listener.address if api else None)
    listener.run(Site(listener.token, hosts=listener.hosts, address=listener.address, **services))


def _choose_api_token(address: str) -> str:
    """Print the address of the API; return the token in the environment, else print and return a new one."""
    say(f"API: {address}/v1")
    token = os.environ.get(API_TOKEN)
    if not token:
        token = secrets.token_urlsafe(32)
        say(f"API token: {token}")
    return token


def name_models(models: Sequence[str]) -> dict[str, str]:
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


def load_models(
    sources: Mapping[str, str], threads: int | None, device: str | None, **loading: Any
) -> dict[str, ExplainedModel]:
    """Load the models, and set the number of threads for the largest of them."""
    models, largest = {}, 0
    for name, source in sources.items():
        models[name] = options.load_model(source, device=device, **loading)
        largest = max(largest, hidden_size(models[name]) or 0)
    if models:
        set_threads(threads, largest, device)
    return models


def load_rows(
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
    if model.task.is_generated:
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

    own = {}
    for name, source in sources.items():
        if task == "generation" and (Path(source) / "citation").is_dir():
            own[name] = f"citation:{source}"
    services: dict[str, Any] = {"explorer": Explorer(models, methods, rows, seed=seed, trained_methods=own)}
    if api_address is not None:
        services["api_token"] = _choose_api_token(api_address)
    return services
