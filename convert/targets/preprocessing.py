"""preprocessor_config.json and processor_config.json: how pictures are prepared for the vision encoder.

libmtmd resizes (bicubic, to 8 to 4096 rows), divides by 255 and normalizes. Every key is used, does not change that, or
is refused.
"""

from __future__ import annotations

import re
from typing import Any

from llama_eagle.convert.source import Checkpoint
from llama_eagle.convert.source.config import Fields
from llama_eagle.convert.table import Dims
from llama_eagle.errors import ConfigError

_FILES = ("preprocessor_config.json", "processor_config.json")
_ROWS = (8, 4096)  # of a picture, at least and at most: libmtmd reads no others from a file of these encoders
_CLASSES = {  # those of transformers that prepare pictures as Qwen2-VL's does
    "image_processor_type": r"Qwen\d\w*ImageProcessor(Fast|Pil)?",
    "feature_extractor_type": r"Qwen\d\w*ImageProcessor(Fast|Pil)?",
    "processor_class": r"Qwen\d\w*Processor",
}
_FIXED: dict[str, tuple[Any, ...]] = {  # key -> the values that are what libmtmd does
    "do_resize": (True,),
    "resample": (3, "bicubic", "BICUBIC"),
    "do_center_crop": (False,),
    "do_pad": (False,),
    "temporal_patch_size": (2,),
}
_SIZES = {"patch_size": "patch", "merge_size": "merge"}  # equal to those of config.json
_USED = ("image_mean", "image_std", "do_rescale", "rescale_factor", "do_normalize", "size", "min_pixels", "max_pixels")
# Videos, the form of inputs and outputs, and names of tokens, which config.json and the tokenizer state.
_SILENT = """
    image_processor video_processor video_processor_type do_convert_rgb default_to_square crop_size pad_size data_format
    input_data_format return_tensors return_metadata device disable_grouping num_frames fps min_frames max_frames
    do_sample_frames video_metadata image_token video_token image_token_id video_token_id vision_start_token
    vision_end_token chat_template auto_map tokenizer transformers_version _valid_processor_keys _processor_class
"""


def _settings(checkpoint: Checkpoint) -> Fields:
    """Return the settings of both files and of their image_processor, the later ones first."""
    merged: dict[str, Any] = {}
    for file in _FILES:
        top = Fields(checkpoint.json_file(file) or {}, f"{checkpoint.source}/{file}")
        for part in filter(None, (top, top.child("image_processor"))):
            merged |= {key: value for key, value in part.data.items() if value is not None}
    return Fields(merged, f"{checkpoint.source}: {_FILES[0]}")


def image_statistics(checkpoint: Checkpoint, dims: Dims) -> tuple[dict[str, list[float]], list[str]]:
    """Return mean and standard deviation of the image channels after a division by 255, and warnings.

    Raises `ConfigError` for preparations that libmtmd does not have.
    """
    settings = _settings(checkpoint)
    _refuse_others(settings, dims)
    mean, deviation = (settings.numbers(f"image_{name}", dims["channels"]) for name in ("mean", "std"))
    if settings.flag("do_normalize") is False:
        mean, deviation = [0.0] * dims["channels"], [1.0] * dims["channels"]
    if not mean or not deviation:
        raise ConfigError(f"{checkpoint.source}: image_mean and image_std are missing in {_FILES[0]}")
    if min(deviation) <= 0:
        raise ConfigError(f"{checkpoint.source}: image_std is {deviation}, expected positive numbers")
    scale = _scale(settings)
    statistics = {"image_mean": [each / scale for each in mean], "image_std": [each / scale for each in deviation]}
    return statistics, _size_warnings(settings, dims)


def _scale(settings: Fields) -> float:
    """Return the factor of pixels from 0 to 1 before they are normalized; 1 for the usual 1/255."""
    if settings.flag("do_rescale") is False:
        return 255.0
    scale = 255 * (settings.need_number("rescale_factor") if settings.get("rescale_factor") is not None else 1 / 255)
    return 1.0 if abs(scale - 1) < 1e-6 else scale


def _refuse_others(settings: Fields, dims: Dims) -> None:
    for key, pattern in _CLASSES.items():
        name = settings.text(key)
        if name and not re.fullmatch(pattern, name):
            raise ConfigError(
                f"{settings.where}: {key} is {name!r}, which llama.cpp does not have for this encoder. Convert without "
                "--mmproj"
            )
    for key, allowed in _FIXED.items():
        settings.require(key, *allowed)
    for key, name in _SIZES.items():
        if settings.integer(key) not in (None, dims[name]):
            raise ConfigError(
                f"{settings.where}: {key} is {settings.integer(key)}, but config.json's encoder has {dims[name]}; "
                "correct one of them"
            )
    known = {*_SILENT.split(), *_CLASSES, *_FIXED, *_SIZES, *_USED}
    if unknown := [key for key, value in settings.data.items() if key not in known and value]:
        raise ConfigError(
            f"{settings.where}: {unknown[0]} is unknown here. Remove it if it changes no picture, or convert without "
            "--mmproj"
        )


def _size_warnings(settings: Fields, dims: Dims) -> list[str]:
    """Return a warning for other limits of a picture's size than libmtmd's."""
    size = settings.child("size") or Fields({}, settings.where)
    row = (dims["patch"] * dims["merge"]) ** 2
    keys = (("min_pixels", "shortest_edge"), ("max_pixels", "longest_edge"))
    stated = [settings.number(key) or size.number(other) for key, other in keys]
    found = [None if pixels is None else round(pixels / row) for pixels in stated]
    if all(n in (None, limit) for n, limit in zip(found, _ROWS, strict=True)):
        return []
    low, high = (limit if n is None else n for n, limit in zip(found, _ROWS, strict=True))
    return [
        f"{settings.where}: pictures of {low} to {high} tokens, with llama.cpp {_ROWS[0]} to {_ROWS[1]} (a GGUF of "
        "this encoder cannot state it): smaller and larger ones are resized differently"
    ]
