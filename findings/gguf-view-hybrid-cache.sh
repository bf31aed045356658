#!/usr/bin/env bash
# `gguf-view` of @huggingface/gguf 0.4.6 estimates the memory of the KV cache. In the GGUF of a hybrid model (here: LFM2)
# `attention.head_count_kv` has an entry for each layer, which is 0 for a layer without attention, and llama.cpp stores no
# keys there. gguf-view counts such a layer as one with `attention.head_count` heads: more than a layer with attention has.
# Seen on 2026-12-01 with the sizes of LFM2-1.2B and 100,000 tokens: 7.7 times the cache of its six layers with attention.
# It needs Node.
. "$(dirname "$0")/common.sh"
install gguf==0.19.0
cd "$work"
npm install --no-audit --no-fund --loglevel=error @huggingface/gguf@0.4.6 > npm.log
"$work/env/bin/python" - << 'P'
import gguf

HEADS_KV = [0, 0, 8, 0, 0, 8, 0, 0, 8, 0, 8, 0, 8, 0, 8, 0]

for name, heads_kv in (("hybrid", HEADS_KV), ("attention", [n for n in HEADS_KV if n])):
    writer = gguf.GGUFWriter(f"{name}.gguf", "lfm2")
    writer.add_block_count(len(heads_kv))
    writer.add_context_length(128000)
    writer.add_embedding_length(2048)
    writer.add_head_count(32)
    writer.add_head_count_kv(heads_kv)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
heads_kv = gguf.GGUFReader("hybrid.gguf").fields["lfm2.attention.head_count_kv"].contents()
print(f"keys in F16: {sum(heads_kv) * 2048 // 32 * 100_000 * 2 / 1e9:.2f} GB for heads {heads_kv}")
P
keys() { node_modules/.bin/gguf-view --context 100000 "$1.gguf" | sed -n 's/^ *K cache *| *//p'; }
expect "keys of 16 layers, six with attention: $(keys hybrid); of these six alone: $(keys attention)" \
    "keys of 16 layers, six with attention: 4.71 GB; of these six alone: 0.61 GB"
