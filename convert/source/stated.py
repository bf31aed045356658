"""Keys of a `quantization_config`: rotations at run time, and keys that change nothing that is read.

Every key is used (coded.py), harmless (below, with its producers), or refused: none is ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from llama_eagle.convert.source.coded import Scheme, quantization_configs, read_scheme
from llama_eagle.convert.source.folder import Checkpoint
from llama_eagle.convert.source.storage import FLOAT_DTYPES, read_text
from llama_eagle.errors import ConfigError

_REMEDY = "convert the unquantized checkpoint and quantize the GGUF"

# Records of how the codes were computed, lists of modules, and settings of kernels. The tensors determine the rest.
_AUTO_ROUND = """
    act_bits act_data_type act_dynamic act_group_size act_sym amp autoround_version backend batch_size bits
    block_name_to_quantize data_type dataset enable_minmax_tuning enable_norm_bias_tuning enable_quanted_input
    extra_config gradient_accumulate_steps group_size iters low_gpu_mem_usage lr minmax_lr modules_to_not_convert
    not_use_best_mse nsamples packing_format provider quant_block_list quant_lm_head quant_method regex_config
    scale_dtype seqlen static_attention_dtype static_attention_granularity static_kv_dtype static_kv_granularity
    supported_types sym to_quant_block_names train_bs use_quant_input
"""  # AutoRound 0.16.1, and before 0.5
_GPTQ = """
    act_group_aware activation awq_gemm_checkpoint backend batch_size bits block_name_to_quantize cache_block_outputs
    checkpoint_format damp_auto_increment damp_percent dataset desc_act disable_exllama do_fuse dynamic exllama_config
    format fuse_max_seq_len group_size ignored_layers lm_head max_input_length meta method model_file_base_name
    model_name_or_path model_seqlen module_name_preceding_first_block modules_in_block_to_quantize modules_to_fuse
    modules_to_not_convert mse pack_dtype pad_token_id parallel_packing q_group_size quant_method static_groups sym
    tokenizer true_sequential use_cuda_fp16 use_exllama version w_bit zero_point
"""  # AutoGPTQ 0.7.1, GPTQModel 7.7.0, AutoAWQ 0.2.9, transformers 5.24
_COMPRESSED = """
    actorder block_structure bypass_divisibility_checks config_groups dequantize dynamic format
    global_compression_ratio group_size ignore input_activations is_mse kv_cache_scheme num_bits observer
    observer_kwargs output_activations quant_method quantization_status run_compressed scale_dtype sparsity_config
    strategy symmetric targets type use_optimized_inference version weights zp_dtype
"""  # compressed-tensors 0.20.1 and before
_MODELOPT = """
    awq_block_size exclude_modules has_zero_point kv_cache_quant_algo pre_quant_scale producer quant_algo
    quantized_layers
"""  # ModelOpt 0.47.0, in addition to those of compressed-tensors
_FP8 = """
    activation_scheme dequantize fmt ignored_layers is_checkpoint_fp8_serialized kv_cache_scheme modules_to_convert
    modules_to_not_convert quant_method scale_fmt weight_block_size
"""  # transformers 5.24, vLLM
_TORCHAO = """
    include_input_output_embeddings modules_to_not_convert quant_method quant_type quant_type_kwargs
    untie_embedding_weights
"""  # transformers 5.24
_BITSANDBYTES = """
    _load_in_4bit _load_in_8bit bnb_4bit_compute_dtype bnb_4bit_quant_storage bnb_4bit_quant_type
    bnb_4bit_use_double_quant llm_int8_enable_fp32_cpu_offload llm_int8_has_fp16_weight llm_int8_skip_modules
    llm_int8_threshold load_in_4bit load_in_8bit quant_method
"""  # transformers 5.24
_METAL = "bits dequantize group_size modules_to_not_convert quant_method"  # transformers 5.24

_HARMLESS = {
    method: frozenset(" ".join(keys).split())
    for method, keys in {
        "auto-round": (_AUTO_ROUND, _GPTQ),
        "intel/auto-round": (_AUTO_ROUND, _GPTQ),
        "awq": (_GPTQ, _AUTO_ROUND),
        "bitsandbytes": (_BITSANDBYTES,),
        "compressed-tensors": (_COMPRESSED,),
        "fp8": (_FP8, _AUTO_ROUND),
        "gptq": (_GPTQ, _AUTO_ROUND),
        "metal": (_METAL,),
        "modelopt": (_MODELOPT, _COMPRESSED),
        "torchao": (_TORCHAO,),
    }.items()
}
_EXACT = {"expert_dtype": ("fp8",)}  # keys that are harmless with these values alone
_BY_NAME = ("config_groups", "dynamic", "extra_config", "quantized_layers")  # objects whose keys are free names
_SAME_KEYS = ("input_activations", "output_activations", "weights")

# Tensors that are no weights: scales and zero points of quantized attention and its cache, and maps of a draft.
CACHE_SCALES = tuple(
    f".{name}_{part}"
    for name in ("q", "k", "v", "kv", "k_proj.output", "v_proj.output")
    for part in ("scale", "zero_point", "global_scale")
)
_MAPS = ("d2t", "t2d")

_ROTATIONS = {  # key -> producer, each multiplying activations at run time
    "rotation": "GPTQModel",
    "rotation_config": "AutoRound",
    "rotation_configs": "AutoRound",
    "spinquant_config": "AutoRound",
    "transform_config": "llm-compressor",
}
_OFFLINE = ("weight_input", "weight_output")  # locations of llm-compressor's rotations that are in the weights
_MODIFIERS = (  # those of llm-compressor 0.14.0 and before that change stored weights only, or are checked here
    "AWQ", "AutoRound", "ConstantPruning", "GPTQ", "LogarithmicEqualization", "MagnitudePruning", "QuIP",
    "Quantization", "REAPPruning", "SmoothQuant", "SparseGPT", "SpinQuant", "WandaPruning", "vLLMQuantization",
)  # fmt: skip
_AT_RUN_TIME = ("bitnet",)  # methods that quantize plain weights in each forward pass


def _entries(stated: dict[str, Any], where: str) -> Iterator[tuple[str, str, Any]]:
    """Yield place, key and value of all settings that are not empty, inside of groups and modules too."""
    for key, value in stated.items():
        if value in (None, False, "", [], {}):
            continue
        yield f"{where}.{key}", key, value
        children = value if key in _BY_NAME else {"": value} if key in _SAME_KEYS else {}
        for name, child in children.items() if isinstance(children, dict) else ():
            if isinstance(child, dict):
                yield from _entries(child, f"{where}.{key}.{name}".rstrip("."))


def checkpoint_scheme(checkpoint: Checkpoint, *, draft: bool = False) -> Scheme:
    """Return the scheme of a checkpoint's quantized weights. Raises ConfigError for what is not read.

    A configuration may describe weights that are not stored: fine-tunes keep that of their base, drafts that of their
    target.
    """
    weights = [name for name in checkpoint.names() if name not in _MAPS and not name.endswith(CACHE_SCALES)]
    is_coded = any(checkpoint.info(name).dtype not in FLOAT_DTYPES for name in weights)
    config = _with_own_file(checkpoint)
    scheme = read_scheme(config, strict=is_coded and not draft)
    if is_coded or not draft:
        _refuse_rotations(checkpoint, config)
    for found in quantization_configs(config) if is_coded else ():
        if isinstance(found, dict):
            _refuse_unknown_keys(found, checkpoint.source)
    return scheme


def _with_own_file(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return config.json; if it states no quantization, with that of the file of ModelOpt, or of AutoGPTQ."""
    config = checkpoint.config
    if next(quantization_configs(config), None):
        return config
    stated = (checkpoint.json_file("hf_quant_config.json") or {}).get("quantization")
    if isinstance(stated, dict):
        return {**config, "quantization_config": {"quant_method": "modelopt", **stated}}
    stated = checkpoint.json_file("quantize_config.json")
    return {**config, "quantization_config": {"quant_method": "gptq", **stated}} if stated else config


def _refuse_rotations(checkpoint: Checkpoint, config: dict[str, Any]) -> None:
    """Raise ConfigError for a rotation that the model applies at run time, which no GGUF does.

    Rotations that were multiplied into the weights (SpinQuant's R1 and R2) are right as they are.
    """
    found = [stated for stated in quantization_configs(config) if isinstance(stated, dict)]
    stated = [entry for each in found for entry in _entries(each, "quantization_config")]
    stated += [(key, key, config[key]) for key in _ROTATIONS if config.get(key)]
    if method := next((m for each in found if (m := each.get("quant_method")) in _AT_RUN_TIME), None):
        raise ConfigError(
            f"{checkpoint.source}: config.json: quant_method {method!r} quantizes its weights at run time, which GGUF "
            "models do not: convert the model that it was trained from"
        )
    for place, key, value in stated:
        if key in _ROTATIONS and _is_online(key, value):
            raise ConfigError(
                f"{checkpoint.source}: config.json: {place}: {_ROTATIONS[key]} rotated the weights, and the model "
                f"rotates its activations at run time, which GGUF models do not: {_REMEDY}"
            )
    recipe = checkpoint.path / "recipe.yaml"
    if recipe.exists():
        _check_recipe(read_text(recipe), checkpoint.source, any(key == "transform_config" for _, key, _ in stated))


def _is_online(key: str, value: Any) -> bool:
    """Return True unless all rotations are known to be in the weights."""
    if key == "spinquant_config" and isinstance(value, dict):
        return bool(value.get("r3") or value.get("r4") or (value.get("r1") and value.get("online_r1_rotation", True)))
    return key != "transform_config" or not all(place in _OFFLINE for place in [*_locations(value)] or [None])


def _locations(value: Any) -> Iterator[Any]:
    """Yield the places at any depth of a transform_config: weights, inputs, outputs, queries or the cache."""
    if isinstance(value, dict):
        if "targets" in value:
            yield value.get("location")
        value = list(value.values())
    for each in value if isinstance(value, list) else ():
        yield from _locations(each)


def _check_recipe(text: str, source: str, has_transforms: bool) -> None:
    """Check llm-compressor's recipe.yaml. has_transforms: config.json states the rotations itself."""
    names = re.findall(r"^\s*(\w+)Modifier:", text, re.M)
    if unknown := [name for name in names if name not in _MODIFIERS]:
        raise ConfigError(
            f"{source}: recipe.yaml: {unknown[0]}Modifier is unknown here: {_REMEDY}. If it changed nothing but stored "
            "weights, remove recipe.yaml"
        )
    online = "QuIP" in names or ("SpinQuant" in names and re.search(r"\bR[34]\b", text, re.I))
    if online and not has_transforms:
        raise ConfigError(
            f"{source}: recipe.yaml rotated the weights for a model that rotates its activations at run time, which "
            f"GGUF models do not: {_REMEDY}"
        )


def _refuse_unknown_keys(found: dict[str, Any], source: str) -> None:
    """Raise ConfigError for a key that could change the values of quantized weights and has no rule here."""
    known = _HARMLESS.get(str(found.get("quant_method")), frozenset())
    for place, key, value in _entries(found, "quantization_config") if known else ():
        if key not in known and key not in _ROTATIONS and value not in _EXACT.get(key, ()):
            raise ConfigError(
                f"{source}: config.json: {place} is {str(value)[:80]!r}, a key of {found['quant_method']} that is "
                f"unknown here: {_REMEDY}. If it changes no weight, remove it"
            )
