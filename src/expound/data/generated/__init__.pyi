from .corpus import generate_examples as generate_examples
from .tokenizer import generated_tokenizer as generated_tokenizer
from .tokenizer import get_vocabulary as get_vocabulary
