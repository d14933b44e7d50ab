"""The generated corpus: reviews and pairs with planted evidence, and a tokenizer of their words."""

from typing import TYPE_CHECKING

from exegete.lazy import lazy

if TYPE_CHECKING:
    from exegete.data.generated.corpus import generate_examples
    from exegete.data.generated.tokenizer import generated_tokenizer, get_vocabulary
else:
    __getattr__, __dir__ = lazy(__name__)

__all__ = ["generate_examples", "generated_tokenizer", "get_vocabulary"]
