"""Tiny language models as GGUF files."""

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

WIDTH, HIDDEN, HEADS, KEY_HEADS, LAYERS = 256, 512, 4, 2, 2
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def byte_tokenizer():
    """Return the tokens and merges of a byte-level BPE tokenizer with one merge, as GGUF files of GPT-2's kind have."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = ["<|endoftext|>", *alphabet, "th"]
    tokenizer = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, [("t", "h")]))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return tokens, ["t h"]


def blocks(shape, kind, seed):
    """Random weights of a shape in a quantized type, as bytes."""
    generator = np.random.default_rng(seed)
    values = (generator.standard_normal(shape) * 0.05).astype(np.float32)
    if kind != Type.Q4_K:
        return gguf.quantize(values, kind)
    # gguf cannot quantize to Q4_K, but any bytes are valid blocks once the two float16 scales at the start are finite.
    size, width = gguf.GGML_QUANT_SIZES[kind]
    raw = generator.integers(0, 256, (shape[0], shape[1] // size, width), dtype=np.uint8)
    scales = np.full((shape[0], shape[1] // size, 2), 1e-3, dtype=np.float16)
    raw[..., :4] = scales.view(np.uint8)
    return raw.reshape(shape[0], -1)


def write_llama(file, kind, *, tied=True):
    """Write a tiny Llama with random quantized weights."""
    tokens, merges = byte_tokenizer()
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_name("tiny")
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([3] + [1] * (len(tokens) - 1))
    writer.add_token_merges(merges)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_chat_template(TEMPLATE)
    narrow = WIDTH * KEY_HEADS // HEADS
    shapes = {"token_embd": (len(tokens), WIDTH)} | ({} if tied else {"output": (len(tokens), WIDTH)})
    for layer in range(LAYERS):
        sizes = {"attn_q": (WIDTH, WIDTH), "attn_k": (narrow, WIDTH), "attn_v": (narrow, WIDTH)}
        sizes |= {"attn_output": (WIDTH, WIDTH), "ffn_gate": (HIDDEN, WIDTH), "ffn_up": (HIDDEN, WIDTH)}
        sizes |= {"ffn_down": (WIDTH, HIDDEN)}
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in sizes.items()}
    for seed, (name, shape) in enumerate(shapes.items()):
        writer.add_tensor(f"{name}.weight", blocks(shape, kind, seed), raw_dtype=kind)
    norms = ["output_norm", *(f"blk.{layer}.{name}" for layer in range(LAYERS) for name in ("attn_norm", "ffn_norm"))]
    for seed, name in enumerate(norms):
        values = 1 + 0.1 * np.random.default_rng(100 + seed).standard_normal(WIDTH)
        writer.add_tensor(f"{name}.weight", values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file
