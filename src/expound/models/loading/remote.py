"""Loading of a language model whose weights are behind a server, from an address."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, TypeGuard
from urllib.parse import parse_qsl, urlsplit

from transformers import AutoTokenizer

from expound.errors import ExpoundError, check_choice
from expound.models.generation.completions import CompletionsModel
from expound.models.generation.server import KEY_VARIABLE, CompletionsServer
from expound.models.loading.checkpoint import check_files, check_vocabulary, describe_load_errors

OPTIONS = ("model", "tokenizer", "concurrency", "timeout")
FORM = "http://127.0.0.1:8000/v1?model=NAME&tokenizer=FOLDER&concurrency=8"


def is_address(model: object) -> TypeGuard[str]:
    """Return whether a model is given as the address of a server."""
    return isinstance(model, str) and model.startswith(("http://", "https://"))


def load_remote(address: str, tokenizer: Any, task: str | None, max_length: int | None) -> CompletionsModel:
    """Return the model at an address, see `FORM`; no request is sent.

    Args:
        address: the server's address up to the version, and in its query the `model`'s name there, the folder or hub
            name of its `tokenizer`, the most requests at a time (`concurrency`, 8), and the seconds that an answer may
            take (`timeout`, 120).
        tokenizer: the tokenizer itself, instead of its folder.
        task: `generation`.
        max_length: the most tokens of prompt and response.

    Raises:
        ExpoundError: another task, an address of another form, or a tokenizer that cannot be loaded.
    """
    if task != "generation":
        raise ExpoundError("a model behind a server is explained in what it says: load it with task='generation'")
    parts = urlsplit(address)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    for name in options:
        check_choice("option of a server's address", name, OPTIONS)
    if parts.username or parts.password:
        raise ExpoundError(f"an address is stored with results: give the server's key in {KEY_VARIABLE} instead")
    if not parts.hostname or not options.get("model"):
        raise ExpoundError(f"expected an address such as {FORM}, got {address!r}")
    if ("tokenizer" in options) == (tokenizer is not None):
        raise ExpoundError(f"give the tokenizer of the server's model once: as its folder, {FORM}, or as tokenizer=")
    if tokenizer is None:
        folder = os.path.expanduser(options["tokenizer"])
        if folder.startswith(("/", ".")) and not Path(folder).exists():
            raise ExpoundError(f"there is no tokenizer at {folder}")
        check_files(folder)
        with describe_load_errors(folder, "tokenizer"):
            tokenizer = AutoTokenizer.from_pretrained(folder)
            check_vocabulary(folder, tokenizer, 1 + max(tokenizer.get_vocab().values(), default=0))
    url = f"{parts.scheme}://{parts.netloc}{parts.path}"
    concurrency, timeout = _read_number(options, "concurrency", 8), _read_number(options, "timeout", 120)
    return CompletionsModel(CompletionsServer(url, options["model"], concurrency, timeout), tokenizer, max_length)


def _read_number(options: dict[str, str], name: str, default: int) -> int:
    value = options.get(name, str(default))
    if not value.isdecimal() or int(value) < 1:
        raise ExpoundError(f"{name}: expected a whole number from 1, got {value!r}")
    return int(value)
