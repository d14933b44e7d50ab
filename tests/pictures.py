"""Tiny random vision-language models with their processors, of several kinds."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
import transformers as hf
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers

WORDS = ["what", "color", "is", "the", "square", "it", "red", "blue", "a", ".", "?", "user", "assistant", ":", "film"]
TEMPLATE = (
    "{% for message in messages %}{{ message.role }} : {% if message.content is string %}{{ message.content }}"
    "{% else %}{% for part in message.content %}{% if part.type == 'image' %}IMAGE{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %} . {% endfor %}{% if add_generation_prompt %}assistant :{% endif %}"
)
TEXT = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}


BOUNDS = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None}


def leave_out_videos(kind):
    """A processor class without a video processor: transformers' own need torchvision."""
    return type(kind.__name__, (kind,), {"check_argument_for_proper_class": lambda *given: None})


def make_tokenizer(specials):
    names = ["<pad>", "<eos>", "<unk>", "<bos>", *specials]
    vocabulary = {word: number for number, word in enumerate([*names, *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", bos_token="<bos>", unk_token="<unk>",
        additional_special_tokens=list(specials),
    )  # fmt: skip


def make_llava():
    tokenizer = make_tokenizer(["<image>"])
    size = {"height": 48, "width": 48}
    image_processor = hf.CLIPImageProcessorPil(size={"shortest_edge": 48}, crop_size=size)
    processor = hf.LlavaProcessor(
        image_processor, tokenizer, patch_size=12, vision_feature_select_strategy="default",
        chat_template=TEMPLATE.replace("IMAGE", "<image>"), num_additional_image_tokens=1,
    )  # fmt: skip
    vision = hf.CLIPVisionConfig(**TEXT, image_size=48, patch_size=12)
    text = hf.LlamaConfig(**TEXT, num_key_value_heads=2, vocab_size=len(tokenizer))
    image_id = tokenizer.convert_tokens_to_ids("<image>")
    return hf.LlavaConfig(
        vision_config=vision, text_config=text, image_token_id=image_id, vision_feature_layer=-1
    ), processor


def make_qwen(version="2"):
    """Qwen 2, 2.5 or 3 VL: tokens of merged patches, as many as the image's size asks for, and positions of its own."""
    tokenizer = make_tokenizer(["<|vision_start|>", "<|image_pad|>", "<|vision_end|>", "<|video_pad|>"])
    image_processor = hf.Qwen2VLImageProcessorPil(
        patch_size=4, temporal_patch_size=2, merge_size=2, min_pixels=16 * 16, max_pixels=48 * 48
    )
    template = TEMPLATE.replace("IMAGE", "<|vision_start|><|image_pad|><|vision_end|>")
    processor = leave_out_videos(hf.Qwen2VLProcessor)(image_processor, tokenizer, chat_template=template)
    names = {"image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>"}
    names |= {"vision_start_token_id": "<|vision_start|>", "vision_end_token_id": "<|vision_end|>"}
    ids = {name: tokenizer.convert_tokens_to_ids(token) for name, token in names.items()}
    rope = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10000.0}
    text = {**TEXT, "num_key_value_heads": 2, "vocab_size": len(tokenizer), "rope_parameters": rope, **BOUNDS}
    vision = {"depth": 2, "hidden_size": 32, "num_heads": 2, "patch_size": 4, "intermediate_size": 48}
    if version == "2":
        vision |= {"embed_dim": 32, "hidden_size": 32, "mlp_ratio": 2}
        return hf.Qwen2VLConfig(vision_config=vision, text_config=text, **ids), processor
    if version == "2.5":
        vision |= {"out_hidden_size": 32, "window_size": 16, "fullatt_block_indexes": [1]}
        return hf.Qwen2_5_VLConfig(vision_config=vision, text_config=text, **ids), processor
    vision |= {"out_hidden_size": 32, "num_position_embeddings": 144, "deepstack_visual_indexes": [0]}
    text |= {"head_dim": 16}
    return hf.Qwen3VLConfig(vision_config=vision, text_config=text, **ids), processor


def make_idefics3():
    """Idefics 3, as SmolVLM: an image in parts, and as a whole."""
    tokenizer = make_tokenizer(["<global-img>", *(f"<row_{i}_col_{j}>" for i in range(1, 7) for j in range(1, 7))])
    image_processor = hf.Idefics3ImageProcessorPil(size={"longest_edge": 48}, max_image_size={"longest_edge": 24})
    processor = hf.Idefics3Processor(
        image_processor, tokenizer, image_seq_len=9, chat_template=TEMPLATE.replace("IMAGE", "<image>")
    )
    vision = {**TEXT, "image_size": 24, "patch_size": 4}
    text = hf.LlamaConfig(**TEXT, num_key_value_heads=2, vocab_size=len(tokenizer), **BOUNDS)
    image_id = tokenizer.convert_tokens_to_ids("<image>")
    return hf.Idefics3Config(
        vision_config=vision, text_config=text, image_token_id=image_id, scale_factor=2, pad_token_id=0
    ), processor


def make_gemma3():
    """Gemma 3: attention among the tokens of an image is not causal."""
    tokenizer = make_tokenizer(["<start_of_image>", "<image_soft_token>", "<end_of_image>"])
    for name, token in (("boi", "<start_of_image>"), ("image", "<image_soft_token>"), ("eoi", "<end_of_image>")):
        setattr(tokenizer, f"{name}_token", token)
        setattr(tokenizer, f"{name}_token_id", tokenizer.convert_tokens_to_ids(token))
    image_processor = hf.Gemma3ImageProcessorPil(size={"height": 48, "width": 48})
    template = TEMPLATE.replace("IMAGE", "<start_of_image>")
    processor = hf.Gemma3Processor(image_processor, tokenizer, chat_template=template, image_seq_length=16)
    vision = hf.SiglipVisionConfig(**TEXT, image_size=48, patch_size=6)
    text = hf.Gemma3TextConfig(**TEXT, num_key_value_heads=2, head_dim=16, vocab_size=len(tokenizer), **BOUNDS)
    ids = {f"{name}_token_index": getattr(tokenizer, f"{name}_token_id") for name in ("boi", "eoi", "image")}
    return hf.Gemma3Config(vision_config=vision, text_config=text, mm_tokens_per_image=16, **ids), processor


def make_paligemma():
    """PaliGemma: a prefix without a causal mask, in an order of the processor's own, and no chat template."""
    tokenizer = make_tokenizer(["\n"])
    image_processor = hf.SiglipImageProcessorPil(size={"height": 48, "width": 48}, image_seq_length=16)
    image_processor.image_seq_length = 16
    processor = hf.PaliGemmaProcessor(image_processor, tokenizer)
    vision = hf.SiglipVisionConfig(**TEXT, image_size=48, patch_size=12, projection_dim=32, vision_use_head=False)
    text = hf.GemmaConfig(**TEXT, num_key_value_heads=2, head_dim=16, vocab_size=len(tokenizer), **BOUNDS)
    image_id = tokenizer.convert_tokens_to_ids("<image>")
    return hf.PaliGemmaConfig(
        vision_config=vision, text_config=text, image_token_id=image_id, projection_dim=32, hidden_size=32
    ), processor


def make_internvl():
    """InternVL: pixels are shuffled into fewer tokens."""
    tokenizer = make_tokenizer(["<img>", "</img>", "<IMG_CONTEXT>", "<video>"])
    names = {"start_image": "<img>", "end_image": "</img>", "context_image": "<IMG_CONTEXT>", "video": "<video>"}
    for name, token in names.items():
        setattr(tokenizer, f"{name}_token", token)
        setattr(tokenizer, f"{name}_token_id", tokenizer.convert_tokens_to_ids(token))
    image_processor = hf.GotOcr2ImageProcessorPil(size={"height": 48, "width": 48}, crop_to_patches=False)
    template = TEMPLATE.replace("IMAGE", "<IMG_CONTEXT>")
    processor = leave_out_videos(hf.InternVLProcessor)(
        image_processor, tokenizer, image_seq_length=16, chat_template=template
    )
    vision = {**TEXT, "image_size": [48, 48], "patch_size": [6, 6]}
    text = hf.Qwen2Config(**TEXT, num_key_value_heads=2, vocab_size=len(tokenizer), **BOUNDS)
    image_id = tokenizer.convert_tokens_to_ids("<IMG_CONTEXT>")
    return hf.InternVLConfig(vision_config=vision, text_config=text, image_token_id=image_id), processor


KINDS = {
    "llava": make_llava, "qwen2_vl": make_qwen, "qwen2_5_vl": partial(make_qwen, "2.5"),
    "qwen3_vl": partial(make_qwen, "3"), "idefics3": make_idefics3, "gemma3": make_gemma3,
    "paligemma": make_paligemma, "internvl": make_internvl,
}  # fmt: skip


def make_model(kind):
    torch.manual_seed(0)
    config, processor = KINDS[kind]()
    model = hf.AutoModelForImageTextToText.from_config(config).eval()
    with torch.no_grad():
        # Tiny random models hardly look at their images otherwise.
        for weight in model.parameters():
            weight.mul_(4 if weight.ndim > 1 else 1)
            if weight.ndim > 1 and not weight.any():
                # Gemma 3 begins with a projection of images to zero.
                weight.normal_(std=0.1)
    return model, processor


def read_prompt(processor, images, text, response=""):
    """What the processor gives to the model for images before a text, with the tokens of a response at the end."""
    if processor.chat_template is None:
        # PaliGemma reads a response as a suffix, and adds the token that ends it.
        whole = processor.image_token * len(images) + text
        given = processor(images=[images], text=[whole], suffix=[response], return_tensors="pt")
        size = given["input_ids"].shape
        return {name: value[:, :-1] if value.shape == size else value for name, value in given.items()}
    messages = [{"role": "user", "content": [{"type": "image"} for _ in images] + [{"type": "text", "text": text}]}]
    prompt = processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return processor(images=[images], text=[prompt + response], return_tensors="pt", add_special_tokens=False)


def make_picture(size=(60, 48), seed=0):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8))
