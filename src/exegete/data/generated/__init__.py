"""The generated corpus: reviews and pairs with planted evidence, and a tokenizer of their words."""

from exegete.data.generated.corpus import examples
from exegete.data.generated.tokenizer import generated_tokenizer, vocabulary

__all__ = ["examples", "generated_tokenizer", "vocabulary"]
