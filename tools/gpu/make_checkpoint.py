"""Writes an OPT or Llama checkpoint of small random numbers in the shapes of a config.json:
make_checkpoint.py CONFIG FOLDER [SPARSITY], of which so many are zero. For measuring how fast one
loads, or is served."""

import json
import math
import pathlib
import random
import shutil
import sys


def opt_tensors(config):
    hidden, ffn = config["hidden_size"], config["ffn_dim"]
    yield "model.decoder.embed_tokens.weight", [config["vocab_size"], hidden]
    yield "model.decoder.embed_positions.weight", [config["max_position_embeddings"] + 2, hidden]
    for i in range(config["num_hidden_layers"]):
        layer = f"model.decoder.layers.{i}."
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            yield layer + f"self_attn.{name}.weight", [hidden, hidden]
            yield layer + f"self_attn.{name}.bias", [hidden]
        for name, shape in (("fc1", [ffn, hidden]), ("fc2", [hidden, ffn])):
            yield layer + name + ".weight", shape
            yield layer + name + ".bias", shape[:1]
        for name in ("self_attn_layer_norm", "final_layer_norm"):
            yield layer + name + ".weight", [hidden]
            yield layer + name + ".bias", [hidden]
    yield "model.decoder.final_layer_norm.weight", [hidden]
    yield "model.decoder.final_layer_norm.bias", [hidden]


def llama_tensors(config):
    hidden, ffn = config["hidden_size"], config["intermediate_size"]
    head = hidden // config["num_attention_heads"]
    kv = head * config.get("num_key_value_heads", config["num_attention_heads"])
    yield "model.embed_tokens.weight", [config["vocab_size"], hidden]
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        for name, outputs in (("q_proj", hidden), ("k_proj", kv), ("v_proj", kv)):
            yield layer + f"self_attn.{name}.weight", [outputs, hidden]
        yield layer + "self_attn.o_proj.weight", [hidden, hidden]
        for name, shape in (
            ("gate_proj", [ffn, hidden]),
            ("up_proj", [ffn, hidden]),
            ("down_proj", [hidden, ffn]),
        ):
            yield layer + f"mlp.{name}.weight", shape
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield layer + name + ".weight", [hidden]
    yield "model.norm.weight", [hidden]
    if not config.get("tie_word_embeddings", False):
        yield "lm_head.weight", [config["vocab_size"], hidden]


def main(config_file, folder, sparsity="0"):
    config = json.loads(pathlib.Path(config_file).read_text())
    tensors = {"opt": opt_tensors, "llama": llama_tensors}[config["model_type"]]
    header, offset = {}, 0
    for name, shape in tensors(config):
        size = 2 * math.prod(shape)
        header[name] = {"dtype": "F16", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    rng = random.Random(1)
    block = bytearray(rng.randbytes(1 << 25))
    # The high bytes of f16: any sign, exponents of numbers around 0.01.
    block[1::2] = block[1::2].translate(bytes(byte & 0x83 | 0x20 for byte in range(256)))
    kept = rng.choices((0, 255), (float(sparsity), 1 - float(sparsity)), k=len(block) // 2)
    for half in range(2):
        block[half::2] = bytes(map(int.__and__, block[half::2], kept))
    folder = pathlib.Path(folder)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        while offset > 0:
            file.write(block[: min(offset, len(block))])
            offset -= len(block)
    shutil.copy(config_file, folder / "config.json")


if __name__ == "__main__":
    main(*sys.argv[1:])
