"""Writes an OPT checkpoint of small random numbers in the shapes of a config.json:
make_checkpoint.py CONFIG FOLDER. For measuring how fast one loads."""

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


def main(config_file, folder):
    config = json.loads(pathlib.Path(config_file).read_text())
    header, offset = {}, 0
    for name, shape in opt_tensors(config):
        size = 2 * math.prod(shape)
        header[name] = {"dtype": "F16", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    block = bytearray(random.Random(1).randbytes(1 << 25))
    # The high bytes of f16: any sign, exponents of numbers around 0.01.
    block[1::2] = block[1::2].translate(bytes(byte & 0x83 | 0x20 for byte in range(256)))
    folder = pathlib.Path(folder)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        while offset > 0:
            file.write(block[: min(offset, len(block))])
            offset -= len(block)
    shutil.copy(config_file, folder / "config.json")


if __name__ == "__main__":
    main(*sys.argv[1:])
