#!/usr/bin/env python3
"""Writes the seeds of the fuzz targets: make_seeds.py FOLDER makes FOLDER/TARGET/NAME.

They are the models of tests/data, cut down to what a fuzzer can change quickly: a few small
tensors, a few hundred tokens. Every seed is a valid input; how an input is laid out stands at the
head of tests/fuzz/TARGET_fuzz.cpp.
"""

import json
import math
import struct
import sys
from pathlib import Path

DATA = Path(__file__).resolve().parent.parent / "data"
MODELS = sorted(path.parent for path in DATA.glob("*/*/config.json"))

# Must be possible to encode with every cut vocabulary, as the fixed text of use_tokenizer.cpp is.
TEXT = "Once upon a time,  there were 3 kings.\n"
BITS = {"F32": 32, "F16": 16, "BF16": 16, "U8": 8, "I64": 64, "BOOL": 8, "F4": 4}
BITS |= {"I8": 8, "I32": 32, "F8_E4M3": 8}


def join(*parts):
    return b"\xff".join(part.encode() if isinstance(part, str) else part for part in parts)


def read(path):
    return path.read_text(encoding="utf-8") if path.exists() else ""


def dump(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def safetensors_file(tensors, metadata=None, data=None):
    """tensors: (name, dtype, shape) in the order of their data."""
    header = {} if metadata is None else {"__metadata__": metadata}
    end = 0
    for name, dtype, shape in tensors:
        begin, end = end, end + math.prod(shape) * BITS[dtype] // 8
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    text = dump(header).encode()
    text += b" " * (-len(text) % 8)
    data = bytes(i % 251 for i in range(end)) if data is None else data
    assert len(data) == end
    return struct.pack("<Q", len(text)) + text + data


def safetensors_seeds():
    for path in sorted(DATA.glob("tiny/*/*.safetensors")):
        with path.open("rb") as file:
            header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        metadata = header.pop("__metadata__", None)
        tensors = [
            (name, tensor["dtype"], [min(size, 3) for size in tensor["shape"]])
            for name, tensor in list(header.items())[:6]
        ]
        yield f"{path.parent.name}-{path.stem}", safetensors_file(tensors, metadata)
    yield "types", safetensors_file([(dtype, dtype, [2, 1]) for dtype in BITS], {"format": "pt"})
    yield "empty", safetensors_file([])
    deep = [1, 2, 1, 2, 1, 1, 1, 1]
    yield "shapes", safetensors_file(
        [("scalar", "F32", []), ("nothing", "F16", [0, 7]), ("deep", "U8", deep)]
    )


def safetensors_index_seeds():
    a = [("a", "F32", [2, 2]), ("both", "U8", [3])]
    b = [("b", "BF16", [1, 5])]
    # One of the two promises less than there is.
    for name, promised in {"all": a + b, "some": a[:1] + b}.items():
        shards = {tensor: f"{'b' if tensor == 'b' else 'a'}.safetensors" for tensor, *_ in promised}
        index = {"metadata": {"total_size": 29}, "weight_map": shards}
        yield name, join(dump(index), safetensors_file(a), safetensors_file(b))


def model_file_seeds():
    shape = [3, 5]
    tensors = []
    metadata = {"format": "pt", "sparsellm.version": "1", "sparsellm.header_crc32c": "0" * 8}
    for dtype in ("F16", "F32", "BF16"):
        weight = {"format": "dense", "version": 1, "dtype": dtype, "shape": shape, "nnz": 15}
        metadata[f"{dtype}.weight"] = dump(weight)
        metadata[f"crc32c:{dtype}.weight"] = "0" * 8
        if dtype == "F32":
            tensors.append(("sparsellm.padding.1.30", "U8", [2]))
        tensors.append((f"{dtype}.weight.dense.values", dtype, [15]))
    yield "dense", safetensors_file([*tensors, ("norm.weight", "F16", [5])], metadata)
    yield "dense-not-aligned", safetensors_file([("u", "U8", [1]), *tensors], metadata)
    yield "plain", safetensors_file([("a.weight", "F16", shape)], {"sparsellm.version": "1"})


def bitmask_weight_seeds():
    rows = [[1, 0, 0, 0, 0, 2, 0, 0, 3, 0], [0] * 10, [0, 4, 0, 5, 6, 0, 0, 0, 0, 7]]
    masks = [sum((value != 0) << i for i, value in enumerate(row)) for row in rows]
    counts = [mask.bit_count() for mask in masks]
    shape = struct.pack("<2q", 3, 10)
    bitmask = b"".join(struct.pack("<H", mask) for mask in masks)
    offsets = struct.pack("<3q", 0, counts[0], counts[0])
    values = [value for row in rows for value in row if value]
    for dtype, code in {"F16": "e", "F32": "f"}.items():
        compressed = struct.pack(f"<{len(values)}{code}", *values)
        tensors = [
            ("a.weight.shape", "I64", [2]),
            ("a.weight.bitmask", "U8", [3, 2]),
            ("a.weight.compressed", dtype, [len(values)]),
            ("a.weight.row_offsets", "I64", [3]),
        ]
        data = shape + bitmask + compressed + offsets
        yield f"{dtype}", safetensors_file(tensors, data=data)
        tensors = [(name.replace(".weight", ""), *rest) for name, *rest in tensors[:3]]
        yield f"{dtype}-24", safetensors_file(tensors, data=shape + bitmask + compressed)


def quantized_weight_seeds():
    rows, columns = 3, 64
    codes = bytes((7 * i) % 126 if i % 3 else 0 for i in range(rows * columns))
    for dtype in ("I8", "F8_E4M3"):
        for shape in ([], [1], [rows], [rows, 1]):
            for scale, code in {"F32": "f", "F16": "e"}.items():
                scales = struct.pack(f"<{math.prod(shape)}{code}", *[0.5] * math.prod(shape))
                tensors = [("a.weight", dtype, [rows, columns]), ("a.weight_scale", scale, shape)]
                name = f"{dtype}-{scale}-{len(shape)}-{math.prod(shape)}"
                yield name, safetensors_file(tensors, data=codes + scales)
        mask = bytes(0b10010010 for _ in range(rows * columns // 8))
        values = bytes(range(1, 1 + 3 * len(mask)))
        tensors = [
            ("a.compressed", dtype, [rows, columns * 3 // 8]),
            ("a.bitmask", "U8", [rows, columns // 8]),
            ("a.shape", "I64", [2, 1]),
            ("a.weight_scale", "BF16", [rows, 1]),
        ]
        data = values + mask + struct.pack("<2q", rows, columns) + b"\x80\x3f" * rows
        yield f"{dtype}-bitmask", safetensors_file(tensors, data=data)
    packed = bytes((11 * i) % 256 for i in range(rows * columns // 2))
    for groups in (1, 2):
        tensors = [
            ("a.weight_packed", "I32", [rows, columns // 8]),
            ("a.weight_shape", "I64", [2]),
            ("a.weight_scale", "BF16", [rows, groups]),
        ]
        data = packed + struct.pack("<2q", rows, columns) + b"\x80\x3f" * rows * groups
        yield f"packed-{groups}", safetensors_file(tensors, data=data)
    tensors = [("b.weight_packed", "I32", [1, 2]), ("b.weight_shape", "I32", [2])]
    tensors.append(("b.weight_scale", "F32", [1]))
    data = b"\x12\x34\x56\x78\x09\0\0\0" + struct.pack("<2if", 1, 9, 1.0)
    yield "packed-row", safetensors_file(tensors, data=data)


def config_seeds():
    for model in MODELS:
        generation = read(model / "generation_config.json")
        yield model.name, join(generation, read(model / "config.json"))
    config = json.loads(read(DATA / "tiny/llama3/config.json"))
    config["rope_parameters"] = dict(config["rope_scaling"], rope_theta=config["rope_theta"])
    yield "rope_twice", join("", dump(config))
    del config["rope_scaling"], config["rope_theta"]
    generation = {"do_sample": False, "top_k": 0, "top_p": 1.0, "min_p": 0.05, "temperature": 0}
    yield "rope_parameters", join(dump(generation), dump(config))
    neutral = {"scale_emb": 1, "attention_multiplier": None, "use_qk_norm": False}
    config |= neutral | {"scale_depth": math.sqrt(config["num_hidden_layers"])}
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 64}
    weights |= {"symmetric": True, "dynamic": False, "actorder": "static", "block_structure": None}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": {"num_bits": 8}}
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head", "re:.*k_proj"],
        "kv_cache_scheme": None,
    }
    yield "quantized", join("", dump(config))
    del config["quantization_config"]
    config["architectures"], config["model_type"] = ["SparseLlamaForCausalLM"], "sparsellama"
    yield "sparse_llama", join("", dump(config))


def cut_vocabulary(vocabulary, merges, is_named, text=TEXT.replace(" ", "Ġ").replace("\n", "Ċ")):
    """The symbols of TEXT, the first merges of these symbols, and the tokens that are named."""
    kept = {symbol for symbol in text if symbol in vocabulary}
    kept |= {token for token in vocabulary if is_named(token)}
    kept_merges = []
    for left, right in merges:
        if len(kept_merges) < 40 and left in kept and right in kept:
            kept_merges.append((left, right))
            kept.add(left + right)
    return {token: i for token, i in vocabulary.items() if token in kept}, kept_merges


def added_tokens_decoder(*tokens):
    """A tokenizer_config.json with these (id, content, special)."""
    flags = {"lstrip": True, "rstrip": True, "normalized": False, "single_word": False}
    decoder = {str(i): dict(flags, content=text, special=special) for i, text, special in tokens}
    return dump({"added_tokens_decoder": decoder})


def character_seeds(folder):
    """A tokenizer.json with BPE of characters, and its variants."""
    tokenizer = json.loads(read(folder / "tokenizer.json"))
    model = tokenizer["model"]
    named = {token["content"] for token in tokenizer["added_tokens"]}
    named |= {f"<0x{byte:02X}>" for byte in range(256)}
    model["vocab"], model["merges"] = cut_vocabulary(
        model["vocab"], model["merges"], lambda token: token in named, TEXT.replace(" ", "▁")
    )
    text = TEXT + "e\u0301 日<s> <l> caf\u00e9!"
    for number, variant in enumerate(json.loads(read(folder / "golden.json"))):
        changes = variant["changes"]
        changes["model"] = dict(model, **changes.get("model", {}))
        yield f"{folder.name}-{number}", join(text, "", dump({**tokenizer, **changes}))


def tokenizer_json_seeds():
    for path in sorted(DATA.glob("*/*/tokenizer.json")):
        name = path.parent.name
        if json.loads(read(path))["decoder"]["type"] != "ByteLevel":
            yield from character_seeds(path.parent)
            continue
        config = read(path.parent / "tokenizer_config.json")
        tokenizer = json.loads(read(path))
        text = TEXT + "".join(token["content"] for token in tokenizer["added_tokens"])
        yield f"{name}-whole", join(text, config, read(path))

        model = tokenizer["model"]
        merges = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
        named = {token["content"] for token in tokenizer["added_tokens"]}
        model["vocab"], kept = cut_vocabulary(model["vocab"], merges, lambda token: token in named)
        model["merges"] = kept
        # The text of an added token need not be possible to encode when it is not looked for.
        yield f"{name}-pairs", join(TEXT, config, dump(tokenizer))
        model["merges"] = [" ".join(merge) for merge in kept]
        yield f"{name}-spaces", join(TEXT, "", dump(tokenizer))

        model.update(unk_token=next(iter(model["vocab"])), fuse_unk=True)
        tokenizer["pre_tokenizer"] = {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Digits", "individual_digits": True},
                {"type": "ByteLevel", "add_prefix_space": True, "use_regex": True},
            ],
        }
        yield f"{name}-unknown", join("Äh?" + text, config, dump(tokenizer))


def merges_vocab_seeds():
    for path in sorted(DATA.glob("*/*/vocab.json")):
        name = path.parent.name
        config = read(path.parent / "tokenizer_config.json")
        merges = read(path.parent / "merges.txt")
        if path.stat().st_size < 10_000:
            yield f"{name}-whole", join(TEXT + "</s>", config, "", merges, read(path))
        pairs = [line.split(" ") for line in merges.splitlines() if not line.startswith("#version")]
        vocabulary, kept = cut_vocabulary(
            json.loads(read(path)), pairs, lambda token: token[0] == "<" and token[-1] == ">"
        )
        lines = "".join(f"{left} {right}\n" for left, right in kept)
        cut = lines, dump(vocabulary)
        yield f"{name}-cut", join(TEXT, config, "", *cut)
        added = {"<mask>": 2**31 - 1, "king": 60_000}
        yield f"{name}-added", join(TEXT + "<mask>", "", dump(added), *cut)
        decoder = added_tokens_decoder((60_000, "time", True), (60_001, "king", False))
        yield f"{name}-decoder", join(TEXT, decoder, "", *cut)


def varint(value):
    encoded = b""
    while value > 0x7F:
        encoded += bytes([value & 0x7F | 0x80])
        value >>= 7
    return encoded + bytes([value])


def read_varint(message, at):
    value = 0
    for shift in range(0, 64, 7):
        value |= (message[at] & 0x7F) << shift
        at += 1
        if message[at - 1] < 0x80:
            break
    return value, at


def protobuf_fields(message):
    """(number, the bytes of the whole field, of its value)"""
    at = 0
    while at < len(message):
        begin = at
        key, at = read_varint(message, at)
        value_begin = at
        match key & 7:
            case 0:
                at = read_varint(message, at)[1]
            case 1:
                at += 8
            case 2:
                size, value_begin = read_varint(message, at)
                at = value_begin + size
            case 5:
                at += 4
        yield key >> 3, message[begin:at], message[value_begin:at]


def piece_text_and_type(message):
    fields = {number: value for number, _, value in protobuf_fields(message)}
    return fields[1].decode(), fields.get(3, b"\x01")[0]


def sentencepiece_seeds():
    normal, byte = 1, 6
    characters = set(TEXT.replace(" ", "▁"))
    for path in sorted(DATA.glob("*/*/tokenizer.model")):
        config = read(path.parent / "tokenizer_config.json")
        for with_bytes in (True, False):
            cut = b""
            pieces = 0
            for number, field, value in protobuf_fields(path.read_bytes()):
                if number == 1:
                    text, kind = piece_text_and_type(value)
                    long = kind == normal and len(text) > 1
                    if long and pieces < 40 and set(text) <= characters:
                        pieces += 1
                        cut += field
                    elif kind == byte and with_bytes or kind not in (byte, normal):
                        cut += field
                    elif kind == normal and text in characters:
                        cut += field
                elif number == 2 and not with_bytes:  # without byte_fallback
                    spec = b"".join(part for inner, part, _ in protobuf_fields(value) if inner == 3)
                    cut += b"\x12" + varint(len(spec)) + spec
                else:
                    cut += field
            name = f"{path.parent.name}-{'bytes' if with_bytes else 'unknown'}"
            yield name, join(TEXT + "Ä<s>", config, "", cut)
            added = dump({"<mask>": 2**31 - 1})
            yield f"{name}-added", join(TEXT + "<mask> <unk>", "", added, cut)
            decoder = added_tokens_decoder((60_000, "time", True), (60_001, "king", False))
            yield f"{name}-decoder", join(TEXT, decoder, "", cut)


def completion_body_seeds():
    bodies = [
        {"prompt": TEXT},
        {"model": "m", "prompt": ["a", "b"], "n": 2, "best_of": 2, "max_tokens": 4, "seed": -1},
        {"prompt": [2, 3, 300], "echo": True, "logprobs": 3, "max_tokens": 0},
        {
            "prompt": [[5, 0], [1]],
            "echo": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "skip_special_tokens": False,
            "logprobs": 0,
        },
        {
            "prompt": "Ä\u0001",
            "temperature": 0.8,
            "top_k": 40,
            "top_p": 0.95,
            "min_p": 0.05,
            "repetition_penalty": 1.1,
            "frequency_penalty": -0.5,
            "presence_penalty": 0.5,
            "logit_bias": {"7": -100, "9": 1.5},
            "stop": ["\n", "kings"],
            "stop_token_ids": [0],
            "ignore_eos": False,
            "add_special_tokens": False,
        },
        {"prompt": "a", "stop": "end", "user": "u", "metadata": {"a": [1]}, "suffix": "", "n": None},
    ]
    for i, body in enumerate(bodies):
        yield f"body-{i}", dump(body).encode()


def prompt_lines_seeds():
    lines = [
        {"prompt": TEXT},
        {"id": "king", "prompt": TEXT, "temperature": 0, "stop": ["\n", "kings"], "seed": -1},
        {"id": -7, "prompt_ids": [1, 2, 300], "max_tokens": 5, "n": 2, "logprobs": 3, "echo": True},
        {
            "prompt": "Ä\u0001",
            "temperature": 0.8,
            "top_k": 40,
            "top_p": 0.95,
            "min_p": 0.05,
            "repetition_penalty": 1.1,
            "frequency_penalty": -0.5,
            "presence_penalty": 0.5,
            "logit_bias": {"7": -100, "9": 1.5},
        },
        {"prompt": "", "seed": 2**62, "ignore_eos": False, "stop": "end", "stop_token_ids": [0]},
    ]
    for i, line in enumerate(lines):
        yield f"line-{i}", dump(line).encode()
    yield "lines", "\n\n".join(json.dumps(line) for line in lines).encode() + b"\r\n"


def edits(first, *lines):
    return "\n".join([first, *lines]).encode()


ENCODINGS = ("dense", "tca_bme", "tiled_csl", "dense_i8", "dense_i4")


def model_directory_seeds():
    """Models as tests/fuzz/model_files.cpp makes them, and edits that leave them what they are."""
    for base in range(7):
        yield f"base-{base}", edits(f"{base}{' verify' if base in (3, 4, 5) else ''}")
        yield f"fit-{base}", edits(f"{base} fit")
    for encoding in ENCODINGS:
        yield f"as-{encoding}", edits(f"0 {encoding}")
    yield "config", edits("0", "J a /max_position_embeddings 100", "D a /torch_dtype")
    yield "theta", edits("0 context", "J a /rope_theta 1e6", 'J a /eos_token_id [1,2]')
    yield "generation", edits("0", "J b /top_p 0.9", "J b /min_p 0.1", "J b /top_k null")
    yield "no-generation", edits("0", "U b")
    yield "link", edits("0", 'W other.json {"bos_token":"<s>"}', "L f other.json")
    yield "value", edits("0", "E c a 10 003c", "E c b -2 0080", "B c -1 3c")
    yield "extra", edits("0", "W notes.txt of mine", "W folder", "M b")
    yield "swapped", edits("0", "S c d m", "X c d m")
    yield "added", edits("0", 'W added_tokens.json {"once": 38}')
    yield "index", edits("1", "J e /metadata {}", "D e /weight_map/lm_head.weight")
    yield "merges", edits("1", "T b #version: 0.2")
    yield "checksums", edits("3 verify", "E d c 4 0102", "H d", "I")
    yield "header", edits("4 verify", "H d", "H e", "H f", "I")
    yield "no-manifest", edits("3 verify", "U e")
    yield "no-card", edits("3", "U a")


def convert_seeds():
    for base in range(7):
        for encoding in ("auto", "smallest", *ENCODINGS):
            dtype = "" if base != 2 else " f16"
            yield f"{base}-{encoding}", edits(f"{base} verify {encoding}{dtype}")
    yield "dry", edits("1 dry")
    yield "magnitude", edits("0 verify magnitude 0.5 matrix")
    yield "random", edits("1 shards random 0.7")
    yield "wanda", edits("0 calibrate wanda 0.5")
    yield "pairs", edits("2 bf16 2:4 calibrate")
    yield "replaced", edits("3 older_model force f16 shards")
    plan = {"rules": [{"tensors": "*.mlp.*", "prune": "magnitude", "sparsity": 0.7}]}
    yield "plan", edits("0 " + dump(plan))
    yield "companions", edits("0", "W LICENSE mine", "W notes.txt mine", "W chat_template.jinja {}")
    yield "dtype", edits("0 bf16", "J a /dtype \"float16\"", "D a /torch_dtype")
    yield "checksums", edits("3 verify", "E d c 4 0102", "H d", "I")


def prune_plan_seeds():
    for path in sorted((DATA.parent.parent / "configs" / "plans").glob("*.json")):
        yield path.stem, dump(json.loads(read(path))).encode()
    rule = {"tensors": "*.mlp.*", "prune": "magnitude", "scope": "row", "sparsity": 0.7}
    one_each = [
        {"default": {"prune": "none"}},
        {"default": {"prune": "random", "sparsity": 0.5, "seed": 7, "format": "tca_bme"}},
        {"description": "text", "rules": [rule], "default": {"prune": "2:4", "format": "smallest"}},
        {"rules": [rule | {"layers": {"first": "1/1"}, "scope": "matrix", "format": "dense"}]},
        {"rules": [rule | {"layers": {"last": 1}, "tensors": ["*.fc1", "*.mlp.down_?roj"]}]},
        {"rules": [rule | {"layers": {"between": [0, "1/1"]}, "prune": "wanda"}]},
        {"rules": [rule | {"layers": [0, 1]}, rule | {"layers": [-1, 0], "tensors": "*"}]},
    ]
    del one_each[5]["rules"][0]["scope"]
    for i, plan in enumerate(one_each):
        yield f"plan-{i}", dump(plan).encode()


# A part of a step: tables of requests with these positions, each with a page of its own. Of
# `adjusted`, each has the row of logits, that of the latest token, and adjustments.
def step_part(requests, logit_rows, samples, generated=0, padding=0, adjusted=()):
    rows = [position for positions in requests for position in positions] + [-1] * padding
    ends = [sum(len(positions) for positions in requests[:i]) for i in range(len(requests) + 1)]
    ends += [ends[-1] + 1 + i for i in range(padding)]
    lengths = [positions[-1] + 1 for positions in requests] + [0] * padding
    stride = 1 if requests else 0
    lists = [[*entries, (-1, -1, 0.0)] for _, _, entries in adjusted]
    entries = [entry for entries in lists for entry in entries]
    sizes = (len(rows), len(lengths), stride, len(logit_rows), len(samples), generated,
             len(adjusted), len(entries))
    pages = list(range(len(requests))) + [-1] * padding
    tables = [1] * len(rows) + rows + ends + lengths + pages + logit_rows
    sample = "<ififfiQq"
    firsts = [sum(len(entries) for entries in lists[:i]) for i in range(len(lists))]
    parts = [struct.pack(f"<8I{len(tables)}i", *sizes, *tables)]
    parts += [struct.pack(sample, slot, 0.5, 3, 0.75, 0.25, 1, 7, 2) for slot in samples]
    parts += [struct.pack("<4i3fi", row, last, first, len(entries), 1.25, 0.5, -0.5, 1)
              for (row, last, _), first, entries in zip(adjusted, firsts, lists)]
    parts += [struct.pack("<iif", *entry) for entry in entries]
    return b"".join(parts)


def rank_message_seeds():
    none = step_part([], [], [])
    decode = step_part([[4], [0], [9]], [0, 2], [0, -1, 1, -1], generated=4, padding=1)
    prompts = step_part([[3, 4], [0, 1, 2]], [1, 4], [3, 2], generated=2)
    banned = (9, -1, -math.inf)
    adjusted_decode = step_part([[4], [0], [9]], [0, 2], [0, -1, 1, -1], generated=4, padding=1,
                                adjusted=[(0, 0, [(3, 2, 0.0), banned]), (2, 2, [])])
    adjusted_prompts = step_part([[3, 4], [0, 1, 2]], [1, 4], [3, 2], generated=2,
                                 adjusted=[(1, 4, [(3, 0, 1.5)])])
    unsampled = step_part([[3, 4], [0, 1, 2]], [0, 1, 4], [-1, -1, -1])
    launch = struct.pack("<Bqq", 1, 12, 4)
    yield "both", b"d" + launch + decode + prompts
    yield "decode", b"d" + launch + decode + none
    yield "prompts", b"d" + launch + none + prompts
    yield "host", b"h" + launch + none + unsampled
    yield "adjusted", b"d" + launch + adjusted_decode + adjusted_prompts
    for name, kind in (("finish", 2), ("counts", 3), ("stop", 4)):
        yield name, b"d" + struct.pack("<Bq", kind, 12)


def session_message_seeds():
    sparsity = {"mode": None, "votes": None, "alphas": [], "thresholds": []}
    options = {
        "cuda": False, "degree": 2, "timeout_ms": 60000, "leaves_out_sums": False,
        "context_size": 0, "max_requests": 64, "step_tokens": 2048, "kv_tokens": 0, "kv_bytes": 0,
        "gpu_memory_utilization": 0.9, "gpu_memory": 1 << 35, "deterministic": False,
        "steps_ahead": 1, "traces": False, "warm_up": True, "threads": 2, "kv_dtype": None, "dtype": "bf16", "weight_format": "auto",
        "records": "size", "activation_sparsity": sparsity, "verify": True, "tuned": False, "formats": {},
        "layouts": {},
    }
    predict = {
        "mode": "predict", "votes": "weighted", "alpha": 1.03, "alpha_layers": 20,
        "alphas": [1, None, 1.5], "thresholds": [0, 0.25, -1],
    }
    formats = {"model.layers.0.mlp.down_proj.weight": "tca_bme"}
    layouts = {"model.layers.0.mlp.down_proj.weight": "size"}
    chosen = options | {
        "activation_sparsity": predict, "formats": formats, "layouts": layouts, "kv_dtype": "f16",
    }
    for name, value in (("plain", options), ("chosen", chosen)):
        yield name, dump({"engine": 1, "model": 1, "options": dump(value)}).encode()
    yield "end", b'{"end": 130}'


def cost_model_seeds():
    model = json.loads(read(DATA.parent.parent / "configs" / "cost_models" / "h200.json"))
    yield "h100", dump(model).encode()
    for name, gpu, cost in (("none", "GPU", 0), ("most", "G" * 100, 1.0)):
        costs = {of: dict.fromkeys(features, cost) for of, features in model["seconds"].items()}
        yield name, dump({"gpu": gpu, "seconds": costs}).encode()


def format_rules_seeds():
    for path in sorted((DATA.parent.parent / "configs" / "format-rules").glob("*.json")):
        yield path.stem, dump(json.loads(read(path))).encode()
    rule = {"density": [0, 0.5], "elements": [0, 1000], "tokens": [1, 8], "format": "tca_bme"}
    yield "one", dump({"description": "text", "gpu": "GPU", "rules": [rule]}).encode()
    yield "any", dump({"gpu": "GPU", "rules": [{"format": "tiled_csl"}, rule]}).encode()
    yield "none", dump({"gpu": "GPU", "rules": []}).encode()


def matrix_list_seeds():
    path = DATA.parent.parent / "configs" / "matrices" / "spmm.json"
    listed = json.loads(read(path))
    yield path.stem, dump(listed).encode()
    size = {"rows": 48, "columns": 48, "nonzeros": 200}  # small enough to be made
    classes = {entry["class"]: entry for entry in reversed(listed["matrices"])}
    for name, entry in classes.items():
        yield name, dump({"matrices": [entry | size]}).encode()
    small = [entry | size for entry in classes.values()]
    yield "all", dump({"description": "text", "matrices": small}).encode()
    wide = {"rows": 9, "columns": 130, "nonzeros": 900}
    dense = [entry | wide for entry in small if entry["class"] != "stencil"]
    yield "wide", dump({"description": None, "matrices": dense}).encode()


def suite_seeds():
    head = {"title": "T", "source": "S", "gpu": "G", "framework": "F", "metric": "decode_ms"}
    # The groups of those in configs, with models and a plan that are there.
    names = {"models": ["a"], "plans": ["p"]}
    for path in sorted((DATA.parent.parent / "configs" / "benchmarks").glob("*.json")):
        for index, group in enumerate(json.loads(read(path))["cells"]):
            known = {key: names[key] for key in names if key in group}
            known |= {"outputs": [64], "gpus": [1, 2]} if "batches" in group else {}
            yield f"{path.stem}-{index}", dump(head | {"cells": [group | known]}).encode()
    engine = {"models": ["a"], "formats": ["dense", "tca_bme"], "sparsities": [0.8], "batches": [8]}
    everything = engine | {
        "kind": "engine", "patterns": ["uniform", "rows:0.5"], "records": ["speed", "size"],
        "dtype": "bf16", "gpus": [1, 4], "gpu_memory": ["24G"], "prompt": 16, "outputs": [8, 16],
        "breakdown": True, "activation_sparsity": [
            {"mode": "off"}, {"mode": "exact", "zeros": 0.9},
            {"mode": "predict", "votes": "sign", "predicted": 0.8, "zeros": 0.9}]}
    kernel = {"kind": "kernel", "models": ["a", "b"], "shapes": ["64x48"], "formats": ["tiled_csl"],
              "sparsities": [0.7], "patterns": ["kept-blocks:4x4"], "tokens": [1, 8]}
    figure = {"what": "W", "unit": "x", "place": "P"}
    stated = [
        figure | {"cells": "*/tca_bme/*/b{}/*", "over": "*/dense/*", "at": [8], "values": [1.5]},
        figure | {"cells": "*/n8|*/n?", "statistic": "mean", "value": "fits", "gpu": "H",
                  "framework": "X", "metric": "time_us"},
        figure | {"at": [1, 2], "values": [3, "out of memory"]}]
    yield "everything", dump(head | {"cells": [everything, kernel], "stated": None}).encode()
    small = engine | {"outputs": [16]}
    yield "stated", dump(head | {"cells": [small, kernel], "stated": stated}).encode()


def matrix_market_seeds():
    fields = {"real": (0.5, -1e-3, "+2.5E1"), "integer": (3, -4, "+5"), "pattern": ("", "", "")}
    for field, values in fields.items():
        for symmetry in ("general", "symmetric", "skew-symmetric"):
            if (field, symmetry) != ("pattern", "skew-symmetric"):
                places = [(2, 1), (3, 2), (4, 1)]
                lines = [f"{r} {c} {v}".rstrip() for (r, c), v in zip(places, values)]
                banner = f"%%MatrixMarket matrix coordinate {field} {symmetry}"
                text = "\n".join([banner, "4 4 3", *lines]) + "\n"
                yield f"{field}-{symmetry}", text.encode()
    general = "%%MatrixMarket matrix coordinate real general"
    yield "duplicates", f"{general}\n3 2 4\n3 2 1\n1 1 1e8\n3 2 -1\n1 1 1\n".encode()
    yield "comments", f"{general}\r\n% of\r\n\r\n 1\t2 1\r\n%\r\n1 2 7".lower().encode()
    yield "zeros", f"{general}\n2 2 2\n1 1 0\n2 2 1e-60\n".encode()
    yield "nothing", f"{general}\n1048576 2147483647 0\n".encode()


def comm_message(kind, body=b"", op=0, root=0, rows=0, row_bytes=0):
    header = struct.pack("<HBBIqqQ", 1, kind, op, root, rows, row_bytes, len(body))
    return b"SparseTP" + header + body


def comm_message_seeds():
    def text(value):
        return struct.pack("<I", len(value)) + value

    hello = struct.pack("<IIB", 1, 2, 1) + text(b"cuda:1") + text(b"model")
    yield "hello", comm_message(1, hello)
    yield "welcome", comm_message(2, struct.pack("<I", 2) + text(b"cpu") + text(b""))
    yield "sum", comm_message(4, bytes(64), op=1, rows=2, row_bytes=32)
    yield "gather", comm_message(4, bytes(12), op=2, rows=1, row_bytes=64)
    yield "broadcast", comm_message(4, bytes(8), op=3, root=1, rows=1, row_bytes=8)
    yield "bytes", comm_message(4, b"bytes", op=4, root=63)
    yield "no-bytes", comm_message(4, op=5)
    yield "late", comm_message(6)
    yield "goodbye", comm_message(7)


def general_sparse_text_seeds():
    plan = (
        "tokens={} group={} token-warps=1 block={} warp={} thread={} thread-nonzeros={} step={} "
        "a-vector=1 x-vector={} x-order={} reductions={} threads=128"
    )
    plans = {
        "thread": (1, 1, "several,whole", "several,whole", "one,whole", 0, 1, 1)
        + ("by-token", "total,none,none"),
        "warp": (8, 4, "several,whole", "one,whole", "one,split", 0, 4, 1)
        + ("by-token", "total,total,none"),
        "block": (2, 1, "one,whole", "one,split", "one,split", 0, 1, 1)
        + ("transposed", "total,total,total"),
        "shares": (4, 2, "several,split", "several,split", "several,split", 16, 8, 2)
        + ("transposed", "bitmap,segment,segment"),
        "singles": (1, 1, "several,whole", "several,split", "one,split", 1, 1, 1)
        + ("by-token", "none,bitmap,segment"),
    }
    for name, fields in plans.items():
        yield f"plan-{name}", plan.format(*fields).encode()
    functions = [
        "linear count=100 a=4 b=-7",
        "branch count=12 ends=3,9,12 values=0,5,7",
        "cyclic count=12 a=8 c=0,2,5",
        "quasi-linear-u8 count=4 a=3 b=1 residuals=0,2,255,0",
        "quasi-linear-u16 count=3 a=3 b=1 residuals=0,2,256",
        "array count=3 values=5,-9,2",
    ]
    for function in functions:
        yield function.split(" ", 1)[0], function.encode()


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def kernel_cache_seeds():
    def text(value):
        return struct.pack("<Q", len(value)) + value

    # The version of the compiler, the source's name and text; its architecture, and no macros.
    key = text(b"none") + text(b"kernel") + text(b"") + struct.pack("<QQ", 0, 0)
    digest = 0x6C62272E07BB014262B821756295C58D  # FNV-1a
    for byte in key:
        digest = (digest ^ byte) * ((1 << 88) + 0x13B) % (1 << 128)
    for name, code in (("code", b"\x7fELF" + bytes(range(60))), ("empty", b"")):
        rest = digest.to_bytes(16, "little") + text(code)
        yield name, b"SpKernel" + struct.pack("<II", 1, crc32c(rest)) + rest


def http_connection_seeds():
    def request(method, path, headers="", body=b"", version="1.1"):
        return f"{method} {path} HTTP/{version}\r\nHost: a\r\n{headers}\r\n".encode() + body

    length = "Content-Length: 4\r\n"
    chunked = "Transfer-Encoding: chunked\r\n"
    expect = length + "Expect: 100-continue\r\n"
    chunks = b"3;a=\"b\"\r\nabc\r\n1\r\nd\r\n0\r\nX: y\r\n\r\n"
    get, post = request("GET", "/"), request("POST", "/", length, b"body")
    later = request("POST", "/later", length, b"body")
    yield "get", get
    yield "head", request("HEAD", "/") + request("HEAD", "/no", length)
    yield "pipelined", get + post + later + get + b"\xffa"
    yield "chunked", request("POST", "/stream", chunked, chunks) + get
    for name, body in (("split", chunks), ("nothing", b"0\r\n\r\n")):
        yield name, b"\xff ".join(bytes([byte]) for byte in request("POST", "/", chunked, body))
    yield "old", request("POST", "/stream", length, b"body", "1.0")
    yield "kept", request("GET", "/", "Connection: keep-alive\r\n", version="1.0") + get
    yield "expect", request("POST", "/", expect) + b"\xff body" + request("POST", "/no", expect)
    yield "stream", later + b"\xffb\xffb\xffe" + get
    yield "half", later + later + b"\xffh\xffb\xffe\xffa"
    yield "gone", later + b"\xffb\xffg"
    yield "drained", later + post[:-1] + b"\xffd\xffay" + get
    yield "refused", later + b"\xffa" + post[:-1] + b"\xffd\xffr"
    yield "throws", request("GET", "/throws") + get
    yield "thrown", request("POST", "/thrown", length) + b"body"
    yield "large", request("POST", "/", "Content-Length: 9999\r\n")
    yield "ambiguous", request("POST", "/", length + length, b"body")
    yield "other", b"PRI * HTTP/2.0\r\n\r\n"


TARGETS = {
    "bitmask_weight": bitmask_weight_seeds,
    "comm_message": comm_message_seeds,
    "completion_body": completion_body_seeds,
    "config": config_seeds,
    "convert": convert_seeds,
    "cost_model": cost_model_seeds,
    "format_rules": format_rules_seeds,
    "general_sparse_text": general_sparse_text_seeds,
    "http_connection": http_connection_seeds,
    "kernel_cache": kernel_cache_seeds,
    "matrix_list": matrix_list_seeds,
    "matrix_market": matrix_market_seeds,
    "merges_vocab": merges_vocab_seeds,
    "model_directory": model_directory_seeds,
    "model_file": model_file_seeds,
    "prompt_lines": prompt_lines_seeds,
    "prune_plan": prune_plan_seeds,
    "quantized_weight": quantized_weight_seeds,
    "rank_message": rank_message_seeds,
    "safetensors": safetensors_seeds,
    "safetensors_index": safetensors_index_seeds,
    "sentencepiece": sentencepiece_seeds,
    "session_message": session_message_seeds,
    "suite": suite_seeds,
    "tokenizer_json": tokenizer_json_seeds,
}


def main():
    for target, seeds in TARGETS.items():
        folder = Path(sys.argv[1]) / target
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in seeds():
            (folder / name).write_bytes(content)


if __name__ == "__main__":
    main()
