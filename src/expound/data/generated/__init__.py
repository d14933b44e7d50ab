"""The generated corpus: reviews and pairs with planted evidence, and a tokenizer of their words."""

from typing import TYPE_CHECKING

from expound.lazy import lazy

if TYPE_CHECKING:
    from expound.data.generated.corpus import generate_examples
    from expound.data.generated.tokenizer import generated_tokenizer, get_vocabulary
else:
    __getattr__, __dir__ = lazy(__name__)

__all__ = ["generate_examples", "generated_tokenizer", "get_vocabulary"]
