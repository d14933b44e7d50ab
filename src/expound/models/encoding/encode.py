"""Examples in any form as rows of canonical columns, rows as batches, and the choice of examples that share one."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, SupportsFloat, cast

import numpy as np
import pandas as pd
import torch
from PIL import Image
from tokenizers import Encoding
from torch import Tensor

from expound.data.alignment import Alignment, align, token_mask
from expound.data.in_memory import is_column, read_table, to_dataset
from expound.data.load import load_data
from expound.data.readers.columns import LABELS, PAIRS, TEXTS, USUAL
from expound.data.readers.exchanges import ANSWERS, EXCHANGE
from expound.data.readers.registry import READERS
from expound.data.spans import read_rationale
from expound.errors import ExpoundError, unknown
from expound.models.batch import Batch
from expound.models.encoding.images import count_leading_tokens
from expound.models.encoding.labels import renumber_labels
from expound.models.encoding.template import TemplateEncoding, encode_slowly
from expound.models.hugging_face import HuggingFaceModel
from expound.models.layers.architecture import get_part_config
from expound.models.state import get_lock

KEYS = (
    *("text", "text_pair", "label", "rationale", "rationale_pair", "answer"),
    *("image", "span", "mask", "choices", "id", "kept", "label_name"),
)
"""The keys of a row with a text, a pair or an image."""
EXCHANGE_KEYS = (*EXCHANGE, "image_regions", "image_fill", "foil", "literal", "unit", "prompt_length", "id", "kept")
"""The keys of a row with generated text."""
LIKELY = dict.fromkeys(ANSWERS, "response") | {"rejected": "foil", "role": "messages", "conversations": "messages"}
LIKELY |= dict.fromkeys(("text", "instruction", "input", "question", "query"), "prompt")
LIKELY |= dict.fromkeys(("documents", "contexts", "context", "passages"), "sources")
LIKELY |= dict.fromkeys(("enable_thinking", "reasoning_effort"), "chat_template_kwargs")
LIKELY_OF_TEXTS = dict.fromkeys(("hypothesis", "sentence2", "question2", "context", "passage"), "text_pair")
LIKELY_OF_TEXTS |= dict.fromkeys(("target", "class", "category", "gold"), "label")
LIKELY_OF_TEXTS |= dict.fromkeys(("tokens", "words", "prompt", "messages", "document", "body", "input"), "text")
LIKELY_OF_TEXTS |= dict.fromkeys(("evidence", "highlights"), "rationale")
"""What keys of other names probably mean."""


def read_rows(data: Any, *, is_exchange: bool = False, **columns: Any) -> tuple[Sequence[Any], str]:
    """Return examples as a list, or as a dataset with canonical columns, and a line that says which columns are read.

    Args:
        data: an example (a text, a pair, an image, a row), several of those, or a table: a dataset, a data frame or
            series, a dict of lists, the path of a file, or a spec.
        is_exchange: whether examples are prompts and chats.
        columns: the columns of a table, see `ColumnOptions`.

    Raises:
        ExpoundError: what holds no examples, or unknown keys or columns.
    """
    if isinstance(data, Path) or (isinstance(data, str) and _is_spec(data)):
        return load_data(str(data), None, **columns), ""
    if isinstance(data, pd.Series):
        data = dict(data) if {*KEYS, *EXCHANGE_KEYS, *USUAL} & set(data.index) else data.tolist()
    if hasattr(data, "detach"):
        # A tensor; this module does not import torch.
        data = data.detach().cpu().numpy()
    if is_table(data) or columns:
        return _read_table(to_dataset(data, "given"), is_exchange, columns)
    examples = _to_list(data)
    rows = [row for row in examples if isinstance(row, Mapping)]
    names = list(dict.fromkeys(key for row in rows for key in row))
    # Rows alone may have usual names, as premise and hypothesis.
    usual = _find_usual(names) if len(rows) == len(examples) and not is_exchange else ()
    for name in names:
        if name not in (*(EXCHANGE_KEYS if is_exchange else KEYS), *usual):
            raise _make_key_error(str(name), is_exchange=is_exchange)
    if set(names) & set(usual) - set(KEYS):
        return _read_table(to_dataset(examples, "given"), is_exchange, columns)
    return examples, ""


def is_table(data: Any) -> bool:
    """Return whether the data is a table: named columns of many values."""
    if not isinstance(data, Mapping):
        kinds = ("features", "to_pylist", "to_dicts")
        return isinstance(data, pd.DataFrame) or any(hasattr(data, name) for name in kinds)
    if any(hasattr(part, "column_names") for part in data.values()):
        return True
    names = ("messages", "prompt", "text", "image", *sorted(USUAL))
    main: Any = next((data[name] for name in names if name in data), None)
    # A row of a chat has a list of messages; a table has a list of such lists.
    return is_column(main) and not (len(main) and isinstance(next(iter(main)), Mapping))


def read_row(row: Mapping[str, Any], number: int = 0) -> dict[str, Any]:
    """Return a row of a text with its rationales as characters, however they were given, and its label as a number.

    Raises:
        ExpoundError: a rationale that does not belong to the text.
    """
    read = dict(row)
    for name, text in (("rationale", read.get("text")), ("rationale_pair", read.get("text_pair"))):
        marked = read.get(name)
        if marked is not None and isinstance(text, str):
            marked = marked.tolist() if isinstance(marked, np.ndarray) else marked
            read[name] = read_rationale(marked, text, f"example {number}")
    if isinstance(read.get("label"), bool | np.bool_):
        read["label"] = int(read["label"])
    elif isinstance(read.get("label"), float | np.floating) and np.isnan(read["label"]):
        read["label"] = None
    return read


def check_keys(row: Mapping[Any, Any]) -> None:
    """Raise ExpoundError for a key of a row of generated text that is not known; it names the likely one."""
    for key in row:
        if key not in EXCHANGE_KEYS:
            raise _make_key_error(str(key), is_exchange=True)


def _make_key_error(key: str, *, is_exchange: bool) -> ExpoundError:
    keys = EXCHANGE_KEYS if is_exchange else KEYS
    likely = (LIKELY if is_exchange else LIKELY_OF_TEXTS).get(key)
    if likely is None:
        return unknown("key of a row", key, keys)
    return ExpoundError(f"unknown key of a row {key!r}. Did you mean {likely!r}? Valid choices: {', '.join(keys)}")


def _find_usual(names: Sequence[str]) -> tuple[str, ...]:
    """Return the usual names of one text, or of two, and of a label and an answer, that are among the names."""
    texts = next((pair for pair in PAIRS if set(pair) <= set(names)), None)
    found = list(texts or [name for name in TEXTS if name in names][:1])
    for usual in (LABELS, ("answer", "answers") if texts else ()):
        found += [name for name in usual if name in names][:1]
    return tuple(found)


def _is_spec(text: str) -> bool:
    """Return whether a text is the path of a file, or a spec; a spec with white space is one if its path exists."""
    name, _, path = text.partition("?")[0].partition(":")
    # The operating system refuses names that are too long, or that contain a zero.
    with suppress(OSError, ValueError):
        if name in READERS and path:
            return not any(map(str.isspace, text)) or Path(path).exists()
        return "." in text and Path(text).suffix[1:].lower() in READERS and Path(text).is_file()
    return False


def _read_table(data: Any, is_exchange: bool, columns: Mapping[str, Any]) -> tuple[Sequence[Any], str]:
    """Return a table in canonical form, and a line that says how it was read."""
    names = list(data.column_names)
    if not len(data):
        raise ExpoundError("there is nothing to explain: no example was given")
    if not is_exchange:
        if not columns and set(names) <= set(KEYS) and {"text", "image"} & set(names):
            return data, ""
        table, line = read_table(data, **columns)
        for name in ("span", "mask", "choices"):
            if name in names and len(table) == len(data):
                table = table.add_column(name, data[name])
        return table, line
    if columns:
        raise ExpoundError(f"{next(iter(columns))} names a column of texts: call the columns of prompts by their names")
    if not {"prompt", "messages"} & set(names):
        raise ExpoundError(f"the table has no column 'prompt' or 'messages'; it has: {', '.join(names)}")
    unused = [name for name in names if name not in EXCHANGE_KEYS]
    for name in unused:
        if name in LIKELY and LIKELY[name] not in names:
            raise _make_key_error(name, is_exchange=True)
    line = (
        f"{len(data)} rows; {', '.join(name for name in names if name in EXCHANGE_KEYS)}; unused: {', '.join(unused)}"
    )
    return list(data.remove_columns(unused)), line if unused else ""


def _to_list(examples: Any) -> Sequence[Any]:
    """Return a single example as a list of one, several as a list."""
    is_image = hasattr(examples, "convert")
    if isinstance(examples, np.ndarray) and examples.dtype.kind not in "OUST":
        is_image = examples.ndim in (2, 3)
    if isinstance(examples, str | Mapping | tuple) or is_image:
        return [examples]
    if not isinstance(examples, Iterable) or isinstance(examples, bytes | bytearray | set | frozenset):
        raise ExpoundError(f"expected an example or several, got {examples!r:.80}")
    sequence = examples if isinstance(examples, Sequence) else list(examples)
    if not sequence:
        raise ExpoundError("there is nothing to explain: no example was given")
    return sequence


logger = logging.getLogger(__name__)
Spans = Sequence[Sequence[int]]
TOKENS_PER_BATCH, TOKENS_PER_BATCH_ON_CPU = 4096, 1024
"""Token budget of a batch on a CPU: larger ones are slower, and take memory in proportion."""
TEXT_COLUMNS = ("text", "text_pair", "prompt", "messages", "sources", "response")
Rows = Sequence[Mapping[str, Any]]
TokenizedRows = tuple[Sequence[Any], tuple[Alignment, ...]]


def read_examples(model: HuggingFaceModel, data: Any, **columns: Any) -> Sequence[Any]:
    """Return examples in any form as a list, with labels in the model's numbering where the data names its classes.

    Numbers in rows that come without a list of classes are the model's own. If a table has other columns than
    canonical ones, a warning says which are read.

    Args:
        model: the model that is explained.
        data: see `read_rows`.
        columns: see `ColumnOptions`.

    Raises:
        ExpoundError: what holds no examples, unknown keys or columns, or a label that the model does not have.
    """
    is_exchange = model.task.is_generated
    examples, line = read_rows(data, is_exchange=is_exchange, **columns)
    if line:
        logger.warning("%s", line)
    if hasattr(examples, "features"):
        return list(examples) if is_exchange else renumber_labels(model, examples)
    return examples


def example_to_row(example: Any) -> dict[str, Any]:
    """Return an example (a text, a pair, an image or a row) as a row of canonical columns.

    Raises:
        ExpoundError: another kind of example.
    """
    if isinstance(example, str):
        return {"text": example}
    if isinstance(example, Mapping):
        return read_row(example)
    if isinstance(example, tuple | list) and len(example) == 2 and all(isinstance(part, str) for part in example):
        return {"text": example[0], "text_pair": example[1]}
    # PIL images of all kinds, and what imitates them, can be converted.
    if hasattr(example, "convert"):
        return {"image": example}
    if isinstance(example, Tensor) and example.dtype == torch.uint8:
        example = example.cpu().numpy()
    shown = f"{example!r:.80}"
    if isinstance(example, np.ndarray):
        if example.dtype == np.uint8 and example.ndim in (2, 3):
            # PyTorch puts channels first.
            is_channels_first = (
                example.ndim == 3 and example.shape[0] in (1, 3, 4) and example.shape[2] not in (1, 3, 4)
            )
            pixels = np.moveaxis(example, 0, 2) if is_channels_first else example
            return {"image": Image.fromarray(pixels[..., 0] if pixels.shape[2:] == (1,) else pixels)}
        shown = f"an array of {example.dtype}, {example.shape}"
    raise ExpoundError(
        "an example is a text, a pair (text, text), an image (of PIL, or an array of uint8, [H, W, 3] or [3, H, W]) or "
        f"a row with the column 'text', not {shown}"
    )


def encode(
    model: HuggingFaceModel,
    examples: Sequence[Any],
    tokenize: Callable[[Any, Rows], TokenizedRows] | None = None,
    device: str | torch.device | None = None,
) -> Batch:
    """Encode examples as one batch; see `ExplainedModel.encode`.

    Args:
        model: the model that the batch is for.
        examples: texts, pairs, images or rows.
        tokenize: a function from the model and rows to encodings and alignments, for models that put texts into
            something else; default: the tokenizer.
        device: where to put the batch; default: the model's device.
    """
    if not len(examples):
        raise ExpoundError("there is no example to encode")
    rows = [example_to_row(example) for example in examples]
    # Fast tokenizers keep their truncation as state, so threads may not share one at the same time.
    with model.lock(), get_lock(model.processing_class):
        if model.modality == "image":
            batch = _encode_images(model, rows)
        else:
            batch = _encode_texts(model, rows, tokenize or _tokenize)
    return batch.to(device or model.device)


def _encode_texts(model: HuggingFaceModel, rows: Rows, tokenize: Callable[[Any, Rows], TokenizedRows]) -> Batch:
    encodings, alignments = tokenize(model, rows)
    special = model.special_ids
    ids, content = [], []
    for number, encoding in enumerate(encodings):
        ids.append(torch.tensor(encoding.ids))
        mask = []
        for added, token in zip(encoding.special_tokens_mask, encoding.ids, strict=True):
            # A special token that the user wrote into the text has no mark of its own.
            mask.append(not added and token not in special)
        if not any(mask):
            texts = " / ".join(alignments[number].texts)
            raise ExpoundError(f"example {number} has nothing to explain: {texts!r:.80} has no token")
        content.append(torch.tensor(mask))
    left = model.is_decoder
    attended = pad_rows([torch.ones_like(row, dtype=torch.bool) for row in ids], False, left=left)
    inputs = {"input_ids": pad_rows(ids, model.pad_id, left=left), "attention_mask": attended.long()}
    # A generating model is never told which text a token is of: GPT-2 would add a word embedding for it.
    generates = left and model.model.get_output_embeddings() is not None
    needs_types = "token_type_ids" in model.forward_parameters and not generates
    if needs_types and "token_type_ids" in model.tokenizer.model_input_names:
        inputs["token_type_ids"] = pad_rows([torch.tensor(encoding.type_ids) for encoding in encodings], 0, left=left)
    batch = Batch(
        inputs=inputs,
        attended=attended,
        content=pad_rows(content, False, left=left),
        word_of=pad_rows([torch.tensor(alignment.word_of) for alignment in alignments], -1, left=left),
        alignments=alignments,
        **_encode_annotations(model, rows, alignments),
    )
    return model.add_position_ids(batch)


def pad_rows(rows: Sequence[Tensor], fill: Any, *, left: bool) -> Tensor:
    """Return rows of uneven length as a grid, padded with `fill` on the left or on the right."""
    longest = max(len(row) for row in rows)
    grid = torch.full((len(rows), longest), fill, dtype=rows[0].dtype)
    for line, row in zip(grid, rows, strict=True):
        start = longest - len(row) if left else 0
        line[start : start + len(row)] = row
    return grid


def _tokenize(model: HuggingFaceModel, rows: Rows) -> TokenizedRows:
    texts = get_texts(rows)
    if model.task.reads_context and len(texts[0]) == 1:
        raise ExpoundError("question answering needs a question, 'text', and its context, 'text_pair'")
    # A question is never cut, only its context.
    strategy = "only_second" if model.task.reads_context else "longest_first"
    encodings = encode_rows(model.tokenizer, texts, model.max_length, strategy)
    is_cut = [bool(encoding.overflowing) for encoding in encodings]
    if any(is_cut):
        logger.warning(
            "%d of %d texts are longer than %d tokens: truncated; stride (--stride 64) explains whole texts in windows",
            sum(is_cut), len(rows), model.max_length,
        )  # fmt: skip
    examples = zip(texts, encodings, is_cut, strict=True)
    return encodings, tuple(align(text, cast(Encoding, encoding), truncated=cut) for text, encoding, cut in examples)


def get_texts(rows: Rows) -> list[tuple[str, ...]]:
    """Return the text or the two texts of every row.

    Raises:
        ExpoundError: a row without a text, an empty text, or texts and pairs in one batch.
    """
    texts: list[tuple[str, ...]] = []
    for number, row in enumerate(rows):
        text, pair = row.get("text"), row.get("text_pair")
        if not isinstance(text, str):
            columns = ", ".join(row) or "none"
            raise ExpoundError(f"example {number} has no text in a column 'text'; its columns: {columns}")
        if not isinstance(pair, str | None):
            raise ExpoundError(f"example {number} has no text in the column 'text_pair' but {pair!r:.80}")
        if not text.strip() and not (pair or "").strip():
            raise ExpoundError(f"example {number} is an empty text")
        if pair is None:
            texts.append((text,))
        else:
            texts.append((text, pair))
    if len({len(example) for example in texts}) > 1:
        raise ExpoundError("a batch holds either texts or pairs, not both: encode them apart")
    return texts


def _encode_annotations(model: HuggingFaceModel, rows: Rows, alignments: tuple[Alignment, ...]) -> dict[str, Any]:
    """Return labels, rationales and the positions of possible answers, as far as the rows have them."""
    fields: dict[str, Tensor] = {}
    left = model.is_decoder
    if any(row.get("rationale") is not None or row.get("rationale_pair") is not None for row in rows):
        masks = [_encode_rationale(row, alignment) for row, alignment in zip(rows, alignments, strict=True)]
        fields["rationale_mask"] = pad_rows([torch.tensor(mask) for mask, _ in masks], False, left=left)
        fields["has_rationale"] = torch.tensor([known for _, known in masks])
    if model.task.reads_context:
        fields["answerable"] = pad_rows([_find_answerable(alignment) for alignment in alignments], False, left=left)
        if all(row.get("answer") is not None for row in rows):
            spans = [_encode_answer(row["answer"], alignment) for row, alignment in zip(rows, alignments, strict=True)]
            answers, starts = torch.tensor(spans), torch.zeros(len(rows), dtype=torch.long)
            if left:
                longest = fields["answerable"].shape[1]
                starts = torch.tensor([longest - len(alignment.tokens) for alignment in alignments])
            fields["labels"] = torch.where(answers < 0, -1, answers + starts[:, None])
    elif all(row.get("label") is not None for row in rows):
        fields["labels"] = _encode_labels(model, rows)
    return fields


def _encode_labels(model: HuggingFaceModel, rows: Rows) -> Tensor:
    """Return labels [B]: numbers unchanged, names by the model's own list.

    Raises:
        ExpoundError: a name that the model does not have, or what is neither a name nor a number.
    """
    labels: list[Any] = []
    for row in rows:
        label = row["label"]
        if isinstance(label, str):
            label = model.label_id(label)
        if model.config.problem_type == "multi_label_classification" and np.shape(label) == (len(model.labels),):
            labels.append([float(value) for value in label])
            continue
        if np.ndim(label) or not isinstance(label, SupportsFloat):
            raise ExpoundError(f"expected one label per example, a name or a number, got {label!r:.80}")
        value = float(label)
        # pandas stores whole numbers as floats where a value is missing.
        labels.append(int(value) if value.is_integer() and not model.task.predicts_number else value)
    return torch.tensor(labels)


def _encode_rationale(row: Mapping[str, Any], alignment: Alignment) -> tuple[list[bool], bool]:
    """Return a mask over an example's tokens, and whether people annotated the example at all."""
    sides: list[Spans | None] = [row.get("rationale"), row.get("rationale_pair")]
    masks = [token_mask(alignment, spans, side) for side, spans in enumerate(sides) if spans is not None]
    if not masks:
        return [False] * len(alignment.tokens), False
    return [any(marks) for marks in zip(*masks, strict=True)], True


def _find_answerable(alignment: Alignment) -> Tensor:
    """Return a mask of the context's tokens and of the first position, which means "no answer" (SQuAD 2)."""
    context = torch.tensor([span is not None and span[0] == 1 for span in alignment.spans])
    context[0] = True
    return context


def _encode_answer(spans: Spans, alignment: Alignment) -> tuple[int, int]:
    """Return first and last token of the first answer; (0, 0) without an answer, (-1, -1) if it was cut off."""
    if not len(spans):
        return 0, 0
    start, end = spans[0]
    inside = [number for number, marked in enumerate(token_mask(alignment, [spans[0]], 1)) if marked]
    if not inside:
        return -1, -1
    last = alignment.spans[inside[-1]]
    # Truncation may leave only the beginning of an answer, which would be a wrong label.
    if last is None or last[2] < end or start < 0:
        return -1, -1
    return inside[0], inside[-1]


def _encode_images(model: HuggingFaceModel, rows: Rows) -> Batch:
    if model.processing_class is None:
        raise ExpoundError("the model came without an image processor: pass it as processing_class")
    for number, row in enumerate(rows):
        if row.get("image") is None:
            raise ExpoundError(f"example {number} has no column 'image'; it has: {', '.join(row)}")
    config = get_part_config(model.model)
    if not hasattr(config, "patch_size"):
        raise ExpoundError(f"{type(model.model).__name__} does not cut images into patches: it is not explained")
    # Image processors do not convert palettes or transparency themselves.
    colors = "RGB" if config.num_channels == 3 else "L"
    pictures = [row["image"].convert(colors) for row in rows]
    pixels = model.processing_class(images=pictures, return_tensors="pt")["pixel_values"].to(model.dtype)
    height, width = (size // config.patch_size for size in pixels.shape[-2:])
    leading = count_leading_tokens(model.model)
    attended = torch.ones(len(rows), leading + height * width, dtype=torch.bool)
    content = attended.clone()
    content[:, :leading] = False
    labels = None
    if all(row.get("label") is not None for row in rows):
        labels = _encode_labels(model, rows)
    return Batch(
        inputs={"pixel_values": pixels},
        attended=attended,
        content=content,
        word_of=torch.where(content, content.long().cumsum(1) - 1, -1),
        labels=labels,
        image_shape=(height, width),
    )


def make_batches(
    model: HuggingFaceModel, examples: Sequence[Any], batch_size: int | None = None,
    cpu_budget: int = TOKENS_PER_BATCH_ON_CPU,
) -> Iterator[list[int]]:  # fmt: skip
    """Yield the indices of the examples of each batch: similar lengths together, short examples first.

    A batch has `batch_size` examples, or as many as fit a budget of padded tokens.
    """
    if batch_size is not None and batch_size < 1:
        raise ExpoundError(f"batch_size is at least 1, got {batch_size}")
    lengths = []
    for example in examples:
        row = example_to_row(example)
        # Characters are exact enough to sort by; images are all the same length.
        length = 4 * 256
        if "image" not in row:
            length = sum(len(str(row.get(column) or "")) for column in TEXT_COLUMNS)
        lengths.append(length)
    sizes = np.array(lengths)
    order = np.argsort(sizes, kind="stable")
    # About four characters per token, and two special tokens: tokenizing twice would cost more than it saves.
    estimate = np.minimum(sizes[order] // 4 + 2, model.max_length)
    budget = cpu_budget if model.device.type == "cpu" else TOKENS_PER_BATCH
    start = 0
    while start < len(examples):
        # A batch of n examples has n times the tokens of its longest, which comes last.
        padded = estimate[start + 1 :] * np.arange(2, len(examples) - start + 1)
        size = batch_size or 1 + int(np.searchsorted(padded, budget, "right"))
        stop = min(start + size, len(examples))
        yield order[start:stop].tolist()
        start = stop


def read_metadata(example: Any) -> dict[str, Any]:
    """Return what a row says about itself beside its input: its `id`, and the columns that a reader kept."""
    if not isinstance(example, Mapping):
        return {}
    own: dict[str, Any] = {"id": example["id"]} if example.get("id") is not None else {}
    return own | dict(json.loads(example.get("kept") or "{}"))


def select_targets(target: Any, indices: Sequence[int], count: int) -> Any:
    """Return the targets of the examples at `indices`, given one target per example or one for all `count`."""
    if target is None or (isinstance(target, str) and target in ("predicted", "label")):
        return target
    targets = target.tolist() if isinstance(target, Tensor) else target
    if not isinstance(targets, list):
        targets = [targets] * count
    if len(targets) != count:
        raise ExpoundError(f"expected one target or {count} (one an example), got {len(targets)}")
    return [targets[index] for index in indices]


def encode_rows(
    tokenizer: Any, texts: Sequence[tuple[str, ...]], max_length: int, truncation: str = "longest_first"
) -> list[Encoding | TemplateEncoding]:
    """Return the tokens of every text or pair, cut to `max_length`.

    Raises:
        ExpoundError: texts that cannot be cut so far, or whose characters a slow tokenizer does not keep.
    """
    if not tokenizer.is_fast:
        return [encode_slowly(tokenizer, text, max_length=max_length, truncation=truncation) for text in texts]
    columns = [list(column) for column in zip(*texts, strict=True)]
    try:
        return list(tokenizer(*columns, truncation=truncation, max_length=max_length, padding=False).encodings)
    # tokenizers raises nothing narrower than Exception.
    except Exception as error:
        raise ExpoundError(f"the texts cannot be cut into at most {max_length} tokens: {error}") from error
