"""The record of a loaded model, derived once."""

from __future__ import annotations

from typing import Any

from expound.models.batch import PER_POSITION, Batch
from expound.models.hugging_face import MOST, remember, take_example
from expound.models.layers.architecture import encoder_decoder_error
from expound.models.layers.derive_record import derive_record
from expound.models.layers.layer_parts import Record


def find_record(model: Any, batch: Batch) -> Record:
    """Return the record of a model's layers and head, derived from an example of the batch at the first call.

    Raises:
        ExpoundError: see `derive_record`; also for an encoder with a decoder.
    """
    if model.is_encoder_decoder:
        raise encoder_decoder_error()

    def derive() -> Record:
        alone = take_example(model, batch)
        if alone.response is not None:
            # One token of a long response is enough.
            alone = alone._map_tensors(lambda values: values[:, : MOST + 1], PER_POSITION)
        return derive_record(model, alone)

    record: Record = remember(model, "layer record", derive)
    return record
