"""Images in the training data of language models: decoding, transforms, placeholders, packing and batches, as nodes.

Pure functions first, thin nodes on top; ``multimodal.graphs`` has ready graphs to copy and change.
"""

from multimodal.augment import OnTensor, compose, random_crop, random_flip, random_resized_crop
from multimodal.collate import collate
from multimodal.image import ImageError, decode, size_of
from multimodal.nodes import CollateImages, DecodeImages, ExpandImages, LoadImages, ResizeImages
from multimodal.packing import PackImages
from multimodal.pixels import normalise_pixel_values
from multimodal.placeholders import caption_text, chat, expand_images, interleaved_text, question_answer
from multimodal.transform import tiles
from multimodal.vision import DynamicResolution, FixedGrid

__all__ = [
    "CollateImages",
    "DecodeImages",
    "DynamicResolution",
    "ExpandImages",
    "FixedGrid",
    "ImageError",
    "LoadImages",
    "OnTensor",
    "PackImages",
    "ResizeImages",
    "caption_text",
    "chat",
    "collate",
    "compose",
    "decode",
    "expand_images",
    "interleaved_text",
    "normalise_pixel_values",
    "question_answer",
    "random_crop",
    "random_flip",
    "random_resized_crop",
    "size_of",
    "tiles",
]
