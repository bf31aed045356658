"""generation_config.json: what a GGUF can state of it, and what it cannot.

Every key is used, changes no answer of a decoder, or is named in a warning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llama_eagle.convert.source.config import Fields
from llama_eagle.errors import ConfigError

if TYPE_CHECKING:
    from llama_eagle.convert.source import Checkpoint

FILE = "generation_config.json"
_SAMPLING = {  # name -> type, and llama.cpp's name
    "top_k": (int, "top_k"),
    "top_p": (float, "top_p"),
    "min_p": (float, "min_p"),
    "temperature": (float, "temp"),
    "repetition_penalty": (float, "penalty_repeat"),
}
_ENDS = ("eos", "eot", "eom")  # tokens at which llama.cpp ends an answer, as far as a GGUF states them
# Attributes of transformers 5.24's GenerationConfig that are read here, and those that choose no token of a single
# answer: lengths, beams, caches, outputs, speculation. The last line: keys of the first Qwen, Baichuan and vLLM.
_SILENT = """
    do_sample eos_token_id bos_token_id pad_token_id decoder_start_token_id
    max_length max_new_tokens max_time early_stopping length_penalty num_return_sequences
    use_cache cache_implementation cache_config max_cache_len low_memory prefill_chunk_size
    output_attentions output_hidden_states output_scores output_logits return_dict_in_generate
    use_mtp is_assistant num_assistant_tokens num_assistant_tokens_schedule assistant_confidence_threshold
    prompt_lookup_num_tokens max_matching_ngram_size assistant_early_exit assistant_lookbehind target_lookbehind
    assistant_ensemble_weight speculation_type compile_config disable_compile continuous_batching_config
    remove_invalid_values renormalize_logits token_healing encoder_repetition_penalty encoder_no_repeat_ngram_size
    diversity_penalty num_beam_groups _from_model_config transformers_version generation_kwargs trust_remote_code
    chat_format max_window_size user_token_id assistant_token_id max_context_len_for_dynamic_ntk
"""


def _read(checkpoint: Checkpoint) -> Fields:
    return Fields(checkpoint.json_file(FILE) or {}, f"{checkpoint.source}/{FILE}")


def sampling_keys(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the author's sampling defaults, which llama.cpp's tools use. Without sampling, the temperature is 0."""
    settings = _read(checkpoint)
    keys: dict[str, Any] = {}
    for name, (kind, short) in _SAMPLING.items():
        if (value := settings.number(name)) is not None:
            keys[f"general.sampling.{short}"] = kind(value)
    return keys | ({"general.sampling.temp": 0.0} if settings.flag("do_sample") is False else {})


def unstated_settings(checkpoint: Checkpoint) -> list[str]:
    """Return a warning for settings that change the answers of transformers and have no key in a GGUF."""
    known = {*_SILENT.split(), *_SAMPLING}
    names = [name for name, value in _read(checkpoint).data.items() if name not in known and _has_effect(value)]
    if not names:
        return []
    return [
        f"{checkpoint.source}: {FILE}: {', '.join(sorted(names))}: a GGUF cannot state this. Set what you need in "
        "each request"
    ]


def _has_effect(value: Any) -> bool:
    """Return False for what switches a setting off: none, an empty list, false, and 0 or 1 (penalties, beams)."""
    return bool(value) and not (type(value) in (int, float) and value == 1)


def add_end_tokens(found: dict[str, int], tokens: list[str], checkpoint: Checkpoint) -> list[str]:
    """Add the tokens at which transformers ends an answer to `found`: name -> id.

    They are those of generation_config.json, or else of config.json. Returns a warning if there are more than a GGUF
    can state.
    """
    left = []
    for token_id in _end_tokens(checkpoint):
        if type(token_id) is not int or not 0 <= token_id < len(tokens):
            raise ConfigError(
                f"{checkpoint.source}: eos_token_id {str(token_id)[:40]!r} is not one of the {len(tokens)} tokens"
            )
        if token_id in (found.get(name) for name in _ENDS):
            continue
        free = next((name for name in _ENDS if name not in found), None)
        if free:
            found[free] = token_id
        else:
            left.append(tokens[token_id])
    if not left:
        return []
    named = ", ".join(map(repr, left[:8]))
    return [
        f"{checkpoint.source}: transformers also ends an answer at {named}, but a GGUF states three tokens: stop there"
    ]


def _end_tokens(checkpoint: Checkpoint) -> list[Any]:
    """Return a stated list, or the one token of a generation_config.json that was not derived from config.json."""
    settings, config = _read(checkpoint), checkpoint.config
    text = config.get("text_config")
    stated = settings.get("eos_token_id")
    for part in (config, text if isinstance(text, dict) else {}):
        stated = part.get("eos_token_id") if stated is None else stated
    if isinstance(stated, list):
        return [token_id for token_id in stated if token_id != -1]  # -1 means none
    own = settings.get("eos_token_id") is not None and not settings.get("_from_model_config")
    return [stated] if own and stated != -1 else []
