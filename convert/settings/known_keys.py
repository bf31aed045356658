"""Keys of a target's config.json: used, without effect, or refused. Others are named in a warning.

transformers reads no key that its class does not have; an unknown one may come from a newer class.
"""

from __future__ import annotations

from typing import Any

from llama_eagle.errors import ConfigError

# Read by the conversion of a family, or by the reader of its quantization.
_USED = """
    architectures attention_bias attn_output_gate decoder_sparse_step full_attention_interval head_dim hidden_act
    hidden_size intermediate_size layer_types linear_conv_kernel_dim linear_key_head_dim linear_num_key_heads
    linear_num_value_heads linear_value_head_dim max_position_embeddings max_window_layers mlp_only_layers
    moe_intermediate_size mtp_num_hidden_layers norm_topk_prob num_attention_heads num_experts num_experts_per_tok
    num_hidden_layers num_key_value_heads num_local_experts num_nextn_predict_layers original_max_position_embeddings
    output_gate_type partial_rotary_factor rms_norm_eps rope_parameters rope_scaling rope_theta
    shared_expert_intermediate_size sliding_window text_config tie_word_embeddings use_sliding_window vision_config
    vocab_size bos_token_id eos_token_id pad_token_id unk_token_id sep_token_id mask_token_id eot_token_id eom_token_id
    dtype torch_dtype quantization quantization_config compression_config rotation_config spinquant_config
"""
# Of training, of loading, of pictures that the template and the tokenizer name, and of the class itself. Stored biases
# decide about mlp_bias. The last lines: defaults of generation that transformers 4 stored here.
_WITHOUT_EFFECT = """
    _name_or_path _attn_implementation _attn_implementation_autoset _experts_implementation _commit_hash
    _flash_attn_2_enabled attn_implementation auto_map model_type transformers_version chunk_size_feed_forward
    attention_dropout attention_probs_dropout_prob hidden_dropout hidden_dropout_prob embd_pdrop resid_pdrop attn_pdrop
    classifier_dropout initializer_range mlp_bias pretraining_tp router_aux_loss_coef router_jitter_noise
    output_router_logits use_cache use_flash_attn gradient_checkpointing mamba_ssm_dtype dual_chunk_attention_config
    image_token_id video_token_id vision_start_token_id vision_end_token_id vision_token_id language_model_only
    mtp_use_dedicated_embeddings use_mrope model_max_length max_sequence_length seq_length tokenizer_class
    tokenizer_model_max_length unsloth_fixed unsloth_version model_name transformers.js_config is_llama_config
    rope_interleaved cls_token_id decoder_start_token_id id2label label2id num_labels problem_type is_encoder_decoder
    is_decoder add_cross_attention cross_attention_hidden_size tie_encoder_decoder finetuning_task task_specific_params
    output_attentions output_hidden_states output_scores return_dict return_dict_in_generate torchscript pruned_heads
    tf_legacy_loss use_bfloat16 prefix remove_invalid_values max_length min_length do_sample early_stopping num_beams
    num_beam_groups diversity_penalty temperature top_k top_p typical_p repetition_penalty length_penalty
    no_repeat_ngram_size encoder_no_repeat_ngram_size num_return_sequences forced_bos_token_id forced_eos_token_id
    exponential_decay_length_penalty suppress_tokens begin_suppress_tokens bad_words_ids
"""
_REFUSED = {"per_layer_config": "layers with settings of their own (transformers 5.24's heterogeneous models)"}


def check_keys(config: dict[str, Any], source: str) -> list[str]:
    """Return a warning for unknown keys. Raises `ConfigError` for a key whose effect llama.cpp's graphs do not have."""
    text = config.get("text_config")
    parts = {"": config, "text_config.": text if isinstance(text, dict) else {}}
    stated = {place + key: key for place, part in parts.items() for key, value in part.items() if value}
    for place, key in stated.items():
        if key in _REFUSED:
            raise ConfigError(
                f"{source}: config.json: {place}: {_REFUSED[key]}, which llama.cpp does not have for this architecture"
            )
    known = {*_USED.split(), *_WITHOUT_EFFECT.split()}
    unknown = [place for place, key in stated.items() if key not in known]
    if not unknown:
        return []
    more = f" and {len(unknown) - 8} more" if len(unknown) > 8 else ""
    return [f"{source}: config.json: {', '.join(unknown[:8])}{more}: unknown here and ignored, as in transformers 5.24"]
