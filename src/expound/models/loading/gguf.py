"""Read language models from GGUF files, the format of llama.cpp, as ordinary transformers models."""

from __future__ import annotations

import struct
from math import prod
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.initialization import no_init_weights
from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor, get_gguf_hf_weights_map

from expound.errors import ExpoundError, shorten

TEXT, ARRAY = 8, 9
WIDTHS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of each type of number."""
MAX_ARRAY_VALUES = 1 << 22
"""Values of all arrays together; vocabularies of 262,144 tokens have about two million."""
MAX_DIMENSIONS = 4


def check_header(file: Path) -> None:
    """Raise ValueError or struct.error for a header that is cut short, or that promises more than the file has.

    The package gguf believes all counts: a file of 94 bytes can make it loop over an array of 2³³ values.
    """
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType  # noqa: PLC0415  # an extra

    with file.open("rb") as stream, mmap(stream.fileno(), 0, access=ACCESS_READ) as data:
        header = _Header(data)
        header.skip(4)
        # A version whose lower half is zero was written in the other byte order.
        if header.read_number("I") & 0xFFFF == 0:
            header.order = ">"
        n_tensors, n_fields = header.read_number("Q"), header.read_number("Q")
        for _ in range(n_fields):
            header.skip_text()
            header.skip_value(header.read_number("I"))
        for _ in range(n_tensors):
            header.skip_text()
            n_dimensions = header.read_number("I")
            if n_dimensions > MAX_DIMENSIONS:
                raise ValueError(f"a tensor has {n_dimensions} dimensions")
            shape = [header.read_number("Q") for _ in range(n_dimensions)]
            block, width = GGML_QUANT_SIZES[GGMLQuantizationType(header.read_number("I"))]
            if header.read_number("Q") + prod(shape) * width // block > len(data):
                raise ValueError(f"a tensor of the shape {shape} does not fit into {len(data)} bytes")


class _Header:
    """A position in the bytes of a file, which moves as values are read and never leaves the file."""

    def __init__(self, data: mmap) -> None:
        self.data, self.order, self.position, self.array_values = data, "<", 0, 0

    def read_number(self, form: str) -> int:
        """Return the next number; `form`: its character in the module struct."""
        (number,) = struct.unpack_from(self.order + form, self.data, self.position)
        self.position += struct.calcsize(form)
        return int(number)

    def skip(self, count: int) -> None:
        """Move on by some bytes. Raises ValueError if the file does not have them."""
        if count > len(self.data) - self.position:
            raise ValueError(f"{count} bytes are expected at byte {self.position} of {len(self.data)}")
        self.position += count

    def skip_text(self) -> None:
        """Move on behind a text."""
        self.skip(self.read_number("Q"))

    def skip_value(self, kind: int) -> None:
        """Move on behind a value of some type."""
        if kind == TEXT:
            self.skip_text()
        elif kind == ARRAY:
            self._skip_array()
        elif kind in WIDTHS:
            self.skip(WIDTHS[kind])
        else:
            raise ValueError(f"there is no type {kind} of values")

    def _skip_array(self) -> None:
        kind, count = self.read_number("I"), self.read_number("Q")
        self.array_values += count
        if kind == ARRAY or self.array_values > MAX_ARRAY_VALUES:
            raise ValueError(f"an array of {count} values, or of arrays")
        if kind != TEXT:
            self.skip(count * WIDTHS.get(kind, 1))
            return
        for _ in range(count):
            self.skip_text()


MAGIC = b"GGUF"
CHUNK_VALUES = 4 << 20
"""Values of an embedding matrix that are dequantized at a time: 16 MiB in float32."""
EMBEDDINGS = ("token_embd.weight", "output.weight")


def find_gguf(path: str | Path) -> Path | None:
    """Return the GGUF file that a path names: the file itself, or the only one in a folder without `config.json`.

    Raises:
        ExpoundError: the folder has several GGUF files.
    """
    path = Path(path)
    if path.suffix == ".gguf":
        return path
    if not path.is_dir() or (path / "config.json").exists():
        return None
    files = sorted(path.glob("*.gguf"))
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        raise ExpoundError(f"{path} has several GGUF files ({names}): name one of them")
    return files[0] if files else None


def load_gguf(file: Path, dtype: torch.dtype) -> tuple[PreTrainedModel, Any]:
    """Load a causal language model and its tokenizer, with the chat template, from a GGUF file.

    Quantized weights are dequantized to `dtype` one tensor after the other. The result is an ordinary model: it can be
    trained and saved as a Hugging Face folder, which transformers refuses for models that it loads from GGUF itself.

    Raises:
        ExpoundError: the package `gguf` is missing, or the file is missing, no GGUF file, damaged, or of an
            architecture that transformers cannot read.
    """
    reader = _open(file)
    architecture = _text_field(reader, "general.architecture")
    try:
        config = AutoConfig.from_pretrained(file.parent, gguf_file=file.name)
        _check_sizes(config, reader, file)
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        # Random initial weights would be overwritten below, and take longer to draw than the file takes to read.
        with no_init_weights():
            model = AutoModelForCausalLM.from_config(config, dtype=dtype)
        # Tying is a part of the initialization that was left out.
        model.tie_weights()
        _fill(model, reader, architecture, file)
    except ExpoundError:
        raise
    # Unknown architectures and damaged values make transformers and gguf raise exceptions of any type.
    except Exception as error:
        raise ExpoundError(
            f"{file}: transformers cannot read the GGUF architecture {architecture!r:.60}: {shorten(error, 200)}"
        ) from error
    return model.eval(), tokenizer


def _check_sizes(config: Any, reader: Any, file: Path) -> None:
    """Raise ExpoundError for sizes that the file's tensors do not have: the model is allocated before it is filled."""
    largest = max((int(size) for tensor in reader.tensors for size in tensor.shape), default=0)
    bounds = {"num_hidden_layers": len(reader.tensors)}
    bounds |= dict.fromkeys(("vocab_size", "hidden_size", "intermediate_size", "head_dim"), largest)
    for key, bound in bounds.items():
        value = getattr(config, key, None)
        if isinstance(value, int) and value > bound:
            raise ExpoundError(f"{file} contradicts itself: {key} is {value}, and its tensors allow at most {bound}")


def _open(file: Path) -> Any:
    """Return gguf's reader of a file whose header and length are checked."""
    try:
        from gguf import GGUFReader  # noqa: PLC0415  # an extra
    except ImportError as error:
        raise ExpoundError("GGUF files need the extra gguf: pip install 'expound[gguf]'") from error
    try:
        with file.open("rb") as stream:
            magic = stream.read(4)
    except OSError as error:
        raise ExpoundError(f"cannot read {file}: {error.strerror}") from error
    if magic != MAGIC:
        raise ExpoundError(f"{file} is not a GGUF file: it begins with {magic!r}, expected {MAGIC!r}")
    try:
        check_header(file)
        return GGUFReader(file)
    # The reader trusts what it reads, so a damaged file fails in numpy, in an enumeration or in a decoder.
    except Exception as error:
        raise ExpoundError(
            f"{file} is cut short or damaged: copy or download it again ({shorten(error, 120)})"
        ) from error


def _text_field(reader: Any, name: str) -> str:
    field = reader.get_field(name)
    return "unknown" if field is None else bytes(field.parts[-1]).decode(errors="replace")


@torch.no_grad()
def _fill(model: PreTrainedModel, reader: Any, architecture: str, file: Path) -> None:
    """Copy the file's tensors into the model's parameters.

    llama.cpp stores some tensors in another layout (the rotary permutation of queries and keys, Gemma's norms plus
    one); transformers' tensor processors undo it.
    """
    from gguf import dequantize  # noqa: PLC0415  # an extra

    processor = TENSOR_PROCESSORS.get(architecture, TensorProcessor)(config=model.config.to_dict())
    names = get_gguf_hf_weights_map(model, processor)
    parameters = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers())
    # Experts are stacked by their processor over several tensors; it collects them here.
    collected: dict[str, Any] = {"tensors": {}}
    filled = set()
    for tensor in reader.tensors:
        target = parameters.get(names.get(tensor.name, ""))
        if target is not None and tensor.name in EMBEDDINGS:
            # The largest tensors are stored in their final layout, so they are dequantized in parts: a vocabulary of
            # 262,144 tokens would need more memory in float32 than the whole model in bfloat16.
            rows = max(1, CHUNK_VALUES // target.shape[-1])
            for start in range(0, len(tensor.data), rows):
                values = dequantize(tensor.data[start : start + rows], tensor.tensor_type)
                target[start : start + rows].copy_(torch.tensor(values))
            filled.add(id(target))
            continue
        processed = processor.process(
            weights=dequantize(tensor.data, tensor.tensor_type),
            name=tensor.name,
            tensor_key_mapping=names,
            parsed_parameters=collected,
        )
        target = parameters.get(names.get(processed.name, ""))
        if target is not None and processed.weights is not None:
            _copy(target, torch.tensor(np.ascontiguousarray(processed.weights)), tensor.name, file)
            filled.add(id(target))
    for name, values in collected["tensors"].items():
        _copy(parameters[name], values, name, file)
        filled.add(id(parameters[name]))
    missing = [name for name, parameter in model.named_parameters() if id(parameter) not in filled]
    if missing:
        raise ExpoundError(f"{file} lacks weights of the model, for instance {missing[0]} ({len(missing)} in all)")


def _copy(target: torch.Tensor, values: torch.Tensor, name: str, file: Path) -> None:
    if target.shape != values.shape:
        shapes = f"{list(values.shape)}, the configuration needs {list(target.shape)}"
        raise ExpoundError(f"{file}: tensor {name} has the shape {shapes}")
    target.copy_(values)
