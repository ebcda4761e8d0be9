#!/usr/bin/env python3
"""Makes the tiny random checkpoints of tests/data/tiny and their reference.json files.

Every checkpoint is a Hugging Face directory with two layers of random weights. Together they cover
what the trained demo models do not: tokenizer.json, grouped and single key/value heads, scaled RoPE
in the old and the new spelling, SiLU, GELU and FATReLU, biases, untied heads, bf16 and f32, shards,
tensor names without "model.", sizes that ranks share unevenly, and the relatives of Llama. The
expected values are computed in float32 from the files as they lie on disk, so from the rounded
weights: by Hugging Face transformers, or by PlainDecoder below for architectures that it has not.

  python3 tests/data/make_tiny_checkpoints.py [--output DIR]           write the checkpoints
  python3 tests/data/make_tiny_checkpoints.py --check [--output DIR]   recompute and compare only

Needs torch, transformers (5 or later), tokenizers, safetensors and numpy.
"""

import argparse
import json
import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.activations import ACT2FN
from transformers.utils import logging

HERE = Path(__file__).resolve().parent
CALIBRATION_TEXT = HERE / "text" / "calibration.txt"
OUTPUT_TOKENS = 24
# Reference values of two runs may differ by the order of float32 sums, not by more.
CHECK_TOLERANCE = 1e-4

# ---------------------------------------------------------------------------------------------
# Vocabulary, shared by all tokenizers here
# ---------------------------------------------------------------------------------------------

# The pre-tokenizer of Llama 3.
LLAMA3_REGEX = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

TRAINED_MERGES = 64
TRAINING_CHARACTERS = 200_000

# Training alone gives merges that never cross the border of two words, so a pre-tokenizer that puts
# a border in the wrong place would mostly give the right ids. Each of these strings becomes one
# token unless a pre-tokenizer splits it: a misplaced border shows in the ids.
BORDER_STRINGS = [
    # digits
    "12345678", "45", "78", " 1", "1a", "a1", "x2", "\u0663\u0664", "1\u00bd", " \u00bd", "\u2167 ",
    # contractions
    "'STA", "'LLA", "'REA", "'MA", "'sta", "'lla", "'tis", "O'N", "t's", "T'S", "'\u017ft",
    # spaces and line ends
    "  ", "    ", "  a", " \n", "  \n", "\n\n", "\n ", "\r\n", "\r\n\r\n", " \r\n", " \r", "\nt",
    "\rt", "\t\t", " \t", "\t\n", "\ta", "\n\t", "!\u00a0!", "\u00a0\u00a0", " \u00a0", "\u00a0x",
    "\u3000\u3000", " \u3000", "\u3000!",
    "!\u0085!", "!\u180e!", "!\u200b!", "!\u2028!", "!\x0b!", "!\x1c!", "!\ufeff!",
    # punctuation
    "!!", "!\n", "!\r\n", "?\n", " !", "! ", "!a", "(p", "_u", "o_", "...", ". ", "# #", "##", "->",
    # marks and other scripts
    "e\u0301", "\u0301t", "\u0301s", "\u00ef", "\u043e\u043b", "\u65e5\u672c", "\u8a9e\u306e",
    "\ud55c\uad6d", "\U0001f469\u200d", "\ufe0f", "\u0928\u092e\u0938\u094d",
]  # fmt: skip

# Whole words without the merges that would build them. A tokenizer with "ignore_merges" finds them;
# one without must not.
UNREACHABLE_WORDS = [" thunderstruck", "Thunderstruck", "\u65e5\u672c\u8a9e", "12/", "987", "'VE"]


def byte_alphabet() -> dict[int, str]:
    """GPT-2's printable stand-in for every byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {byte: chr(byte) for byte in printable}
    for byte in range(256):
        if byte not in alphabet:
            alphabet[byte] = chr(0x100 + len(alphabet) - len(printable))
    return alphabet


BYTE_ALPHABET = byte_alphabet()
ALPHABET_BYTE = {stand_in: byte for byte, stand_in in BYTE_ALPHABET.items()}


def byte_level(text: str) -> str:
    return "".join(BYTE_ALPHABET[byte] for byte in text.encode("utf-8"))


def border_merges() -> list[tuple[str, str]]:
    """Merges that join each of BORDER_STRINGS from the left, one byte at a time."""
    merges: list[tuple[str, str]] = []
    for text in BORDER_STRINGS:
        symbols = byte_level(text)
        merges += [(symbols[:i], symbols[i]) for i in range(1, len(symbols))]
    return list(dict.fromkeys(merges))


def llama3_pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    split = pre_tokenizers.Split(Regex(LLAMA3_REGEX), behavior="isolated", invert=False)
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([split, to_bytes])


def trained_merges() -> list[tuple[str, str]]:
    """Ordinary byte-pair merges of the calibration text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = llama3_pre_tokenizer()
    trainer = trainers.BpeTrainer(
        vocab_size=len(BYTE_ALPHABET) + TRAINED_MERGES,
        initial_alphabet=sorted(ALPHABET_BYTE),
        show_progress=False,
    )
    text = CALIBRATION_TEXT.read_text(encoding="utf-8")[:TRAINING_CHARACTERS]
    tokenizer.train_from_iterator(text.splitlines(keepends=True), trainer)
    return [tuple(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]]


def make_bpe(leading_tokens: list[str]) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """The vocabulary (leading_tokens first) and the merges, most important first."""
    merges = list(dict.fromkeys(border_merges() + trained_merges()))
    tokens = leading_tokens + sorted(ALPHABET_BYTE, key=lambda c: ALPHABET_BYTE[c])
    tokens += [left + right for left, right in merges]
    tokens += [byte_level(word) for word in UNREACHABLE_WORDS]
    unique = list(dict.fromkeys(tokens))
    return {token: i for i, token in enumerate(unique)}, merges


# ---------------------------------------------------------------------------------------------
# Tokenizer files: each function writes them and returns the number of tokens and the id of the BOS
# ---------------------------------------------------------------------------------------------


def write_tensors(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    save_file(tensors, path, {"format": "pt"})
    path.chmod(0o644)  # save_file lets only the owner read it


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=True) + "\n", encoding="utf-8")


def compact_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")), encoding="utf-8")


def llama3_tokenizer(folder: Path) -> tuple[int, int]:
    """tokenizer.json in the style of Llama 3: the special tokens follow the vocabulary."""
    vocab, merges = make_bpe([])
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=True))
    tokenizer.pre_tokenizer = llama3_pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    specials = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"]
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t in specials])
    # Not special: recognised even in the middle of a word, and whatever the caller thinks of
    # special tokens.
    tokenizer.add_tokens([AddedToken("dragon", normalized=False)])
    bos = (specials[0], tokenizer.token_to_id(specials[0]))
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single=f"{bos[0]} $A", pair=f"{bos[0]} $A {bos[0]}:1 $B:1", special_tokens=[bos]
            ),
        ]
    )
    compact_json(folder / "tokenizer.json", json.loads(tokenizer.to_str()))
    write_json(
        folder / "tokenizer_config.json",
        {
            "added_tokens_decoder": {
                str(t["id"]): {k: v for k, v in t.items() if k != "id"}
                for t in json.loads(tokenizer.to_str())["added_tokens"]
            },
            "bos_token": "<|begin_of_text|>",
            "clean_up_tokenization_spaces": True,
            "eos_token": "<|eot_id|>",
            "model_input_names": ["input_ids", "attention_mask"],
            "model_max_length": 512,
            "tokenizer_class": "PreTrainedTokenizerFast",
        },
    )
    return tokenizer.get_vocab_size(), bos[1]


def opt_tokenizer(folder: Path) -> tuple[int, int]:
    """vocab.json and merges.txt, as OPT has them. <s> and <unk> are there but not declared."""
    vocab, merges = make_bpe(["<s>", "<pad>", "</s>", "<unk>"])
    compact_json(folder / "vocab.json", vocab)
    lines = ["#version: 0.2"] + [f"{left} {right}" for left, right in merges]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")

    def added(content: str) -> dict:
        flags = {"lstrip": False, "normalized": True, "rstrip": False, "single_word": False}
        return {"__type": "AddedToken", "content": content, **flags}

    write_json(
        folder / "tokenizer_config.json",
        {
            "add_bos_token": True,
            "add_prefix_space": False,
            "bos_token": added("</s>"),
            "eos_token": added("</s>"),
            "errors": "replace",
            "pad_token": added("<pad>"),
            "tokenizer_class": "GPT2Tokenizer",
            "unk_token": added("</s>"),
        },
    )
    return len(vocab), vocab["</s>"]


def gpt2_tokenizer(folder: Path) -> tuple[int, int]:
    """tokenizer.json in the style of GPT-2; tokenizer_config.json alone asks for the BOS."""
    vocab, merges = make_bpe(["</s>", "<pad>"])
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t in ("</s>", "<pad>")])
    state = json.loads(tokenizer.to_str())
    # The older spelling of merges, which most published files have.
    state["model"]["merges"] = [f"{left} {right}" for left, right in merges]
    del state["model"]["ignore_merges"]
    compact_json(folder / "tokenizer.json", state)
    write_json(
        folder / "tokenizer_config.json",
        {
            "add_bos_token": True,
            "bos_token": "</s>",
            "eos_token": "</s>",
            "model_max_length": 256,
            "pad_token": "<pad>",
            "tokenizer_class": "PreTrainedTokenizerFast",
        },
    )
    return len(vocab), vocab["</s>"]


# ---------------------------------------------------------------------------------------------
# Tokenizer samples
# ---------------------------------------------------------------------------------------------

PLAIN_SAMPLES = [
    "",
    " ",
    "     ",
    "\n",
    " \n \n\n  \n",
    "Hello, world!",
    "Hello  world   again    and     again",
    "trailing space ",
    "trailing spaces   ",
    "   leading spaces",
    "spaces before   \nline ends \n\n  indented\n\n\n",
    "line one\r\nline two\r\n\r\nline four \r\n  five\rsix",
    "a\tb\t\tc\t d \t\n\ta",
    "def f(x):\n    return x + 1\n\n\n\tif y:\r\n\t\tpass",
    "one\ntwo\rthree \rfour",
    "1 12 123 1234 12345 123456 1234567 12345678",
    "12345678",
    "3.14159, 27,000 and 1e10; x1y22z333 1a a1 987 9876 12/ 12/31",
    "x\u00b2 z1\u00bd \u00bd  \u2167 \u0663\u0664\u0665\u0666 \u0967\u0968\u0969\u096a 1\u09683",
    "I'm you're he'll we've they'd it's don't",
    "I'M YOU'RE HE'LL WE'VE THEY'D IT'S DON'T",
    "'STAR 'LLAMA 'REAL 'MAD 'star 'llama 'tis O'Neil rock'n'roll 'VE 'vE",
    "it'\u017ftrue",
    "\u201cquotes\u201d \u2018single\u2019 \u2014 it\u2019s \u2026 \u00abguillemets\u00bb",
    "na\u00efve caf\u00e9 cr\u00e8me br\u00fbl\u00e9e \u00c6\u00d8\u00c5 \u00df \u017f \ufb01",
    "e\u0301te\u0301 cafe\u0301s n\u0303 a\u0300\u0301\u0302b \u0301t",
    (
        "\u0421\u044a\u0435\u0448\u044c \u0435\u0449\u0451 \u0431\u0443\u043b\u043e\u043a, "
        "\u0431\u043e\u043b\u044c\u0448\u0435!"
    ),
    "\u039a\u03b1\u03bb\u03b7\u03bc\u03ad\u03c1\u03b1 \u03ba\u03cc\u03c3\u03bc\u03b5",
    (
        "\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd "
        "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645"
    ),
    "\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e",
    "\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8\u3001\u65e5\u672c\u3002\u65e5\u672c\u8a9e",
    "\ud55c\uad6d\uc5b4 \ubb38\uc7a5 \u0e44\u0e17\u0e22\u0e17\u0e35\u0e48",
    (
        "\U0001f469\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 "
        "\U0001f3f3\ufe0f\u200d\U0001f308\U0001f44d\U0001f3fd \U0001f1eb\U0001f1f7 1\ufe0f\u20e3"
    ),
    "non\u00a0breaking \u00a0 \u00a0\u00a0x\u00a0\u00a0",
    "ideographic\u3000space\u3000\u3000two \u3000! \u3000",
    "!\u0085! !\u180e! !\u200b! !\u2028! !\x0b! !\x1c! !\u2003! !\ufeff! x!\u00a0!",
    "\x01\x02\x07\x08\x1b[0m\x7f \x0c\x0b x",
    "nul\x00inside\x00\x00",
    "\ufeffmarked \ufffd \ue000",
    "!!! ??? ... --- ===>> !\n?\r\n;\n\n x !a ! a",
    "(parens) [brackets] {braces} <tags/> _underscore_ foo_bar fooBar ->",
    "# # ## heading ### #version: 0.2",
    "https://example.org/a?b=c&d=%20#e user@example.org",
    # The stand-ins for bytes as characters of their own.
    "\u0120 \u010a\u0120the \u0100",
    " thunderstruck thunderstruck thunderstrucks Thunderstruck",
    "Snapdragons and dragonflies: dragon, dragondragon dra gon DRAGON",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa the the thethe THE",
]

LLAMA3_SPECIAL_SAMPLES = [
    "<|begin_of_text|>",
    "<|begin_of_text|>Once upon a time<|eot_id|>",
    "a<|end_of_text|>b <|end_of_text|> c\n<|eot_id|>\n",
    "<|begin_of_text| >, <|BEGIN_OF_TEXT|> <<|eot_id|>> <|eot_id|",
    "dragon<|eot_id|>dragon",
]
SLASH_S_SPECIAL_SAMPLES = [
    "</s>",
    "</s>Once upon a time</s>",
    "a</s>b </s> c\n</s>\n<pad><pad> </ s> </S> <</s>>",
    "<s>not declared<unk> here",
]


def encode(tokenizer: Any, text: str, parse_special: bool) -> list[int]:
    """Ids without BOS. With parse_special off, special tokens in the text are ordinary text."""
    backend = tokenizer.backend_tokenizer
    backend.encode_special_tokens = not parse_special
    ids = backend.encode(text, add_special_tokens=False).ids
    backend.encode_special_tokens = False
    return ids


def tokenizer_samples(tokenizer: Any, special_samples: list[str]) -> list[dict]:
    cases = [(text, False) for text in PLAIN_SAMPLES]
    cases += [(text, parse) for text in special_samples for parse in (False, True)]
    return [
        {"text": text, "parse_special": parse, "ids": encode(tokenizer, text, parse)}
        for text, parse in cases
    ]


# ---------------------------------------------------------------------------------------------
# Weights
# ---------------------------------------------------------------------------------------------


def is_readable(token: str) -> bool:
    """False for special tokens and for bytes that are no text on their own."""
    if len(token) > 1 and token[0] == "<" and token[-1] == ">":
        return False
    readable = set(range(0x20, 0x7F)) | {0x09, 0x0A, 0x0D}
    return all(ALPHABET_BYTE[c] in readable for c in token)


def quiet_rows(folder: Path, vocab_size: int) -> list[int]:
    """Ids that should not come up in a continuation: it would end early or not be text.

    Without a tokenizer these are the ids that every such config names: <unk>, <s> and </s>.
    """
    if not any((folder / name).exists() for name in ("tokenizer.json", "vocab.json")):
        return [0, 1, 2]
    vocab = AutoTokenizer.from_pretrained(folder).get_vocab()
    readable = {i for token, i in vocab.items() if is_readable(token)}
    return [i for i in range(vocab_size) if i not in readable]


def random_tensor(name: str, shape: tuple[int, ...], random: np.random.RandomState) -> np.ndarray:
    """Scaled so that attention is not uniform and logits spread over several units."""
    values = random.standard_normal(shape)
    if name.endswith("norm.weight"):
        return 1.0 + 0.1 * values
    if name.endswith("bias"):
        return 0.2 * values
    fan_in = shape[-1]
    is_table = "embed" in name or "lm_head" in name
    return values * (2.5 if is_table else 1.4) / math.sqrt(fan_in)


def with_zeros(values: np.ndarray, share: float, random: np.random.RandomState) -> np.ndarray:
    """With this share of them set to zero at random, and the others larger, for sums as large."""
    kept = random.random_sample(values.shape) >= share
    return np.where(kept, values / math.sqrt(1.0 - share), 0.0)


def random_weights(checkpoint: "Checkpoint", folder: Path, seed: int) -> dict[str, torch.Tensor]:
    """Tensors under the names of the file, in the order of their names."""
    with torch.device("meta"):
        if checkpoint.plain:
            model = PlainDecoder(read_config(folder))
        else:
            model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    is_tied = read_config(folder)["tie_word_embeddings"]
    if is_tied:
        shapes.pop("lm_head.weight", None)
    # RandomState's stream is frozen by numpy; those of newer generators are not.
    random = np.random.RandomState(seed)
    quiet = quiet_rows(folder, read_config(folder)["vocab_size"])
    output_table = "embed_tokens" if is_tied else "lm_head"
    weights = {}
    for name in sorted(shapes):
        values = random_tensor(name, shapes[name], random)
        if output_table in name:
            values[quiet] *= 0.1
        if checkpoint.zeros and "_proj" in name:
            block = int(name.split("layers.")[1].split(".")[0])
            values = with_zeros(values, checkpoint.zeros[block], random)
        stored_name = name.removeprefix(checkpoint.strip_prefix)
        weights[stored_name] = torch.from_numpy(values).to(checkpoint.dtype).contiguous()
    return weights


def save_weights(folder: Path, weights: dict[str, torch.Tensor], shards: int) -> None:
    """One file, or shards of about equal size with their index; the cuts may part q from k."""
    if shards == 1:
        write_tensors(folder / "model.safetensors", weights)
        return
    total = sum(t.numel() * t.element_size() for t in weights.values())
    files: list[dict[str, torch.Tensor]] = [{} for _ in range(shards)]
    done = 0
    for name, tensor in weights.items():
        files[done * shards // total][name] = tensor
        done += tensor.numel() * tensor.element_size()
    weight_map = {}
    for i, tensors in enumerate(files):
        file_name = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        write_tensors(folder / file_name, tensors)
        weight_map |= dict.fromkeys(tensors, file_name)
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    write_json(folder / "model.safetensors.index.json", index)


# ---------------------------------------------------------------------------------------------
# Reference values
# ---------------------------------------------------------------------------------------------


class PlainNorm(torch.nn.Module):
    """RMSNorm (Zhang and Sennrich, 2019)."""

    def __init__(self, features: int, epsilon: float):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(features))
        self.epsilon = epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / torch.sqrt(x.square().mean(-1, keepdim=True) + self.epsilon) * self.weight


class PlainAttention(torch.nn.Module):
    """Grouped-query attention over a window, or over all tokens before."""

    def __init__(self, config: dict):
        super().__init__()
        hidden = config["hidden_size"]
        self.heads = config["num_attention_heads"]
        self.kv_heads = config["num_key_value_heads"]
        self.head_dim = config.get("head_dim") or hidden // self.heads
        self.theta = config.get("rope_theta", 10000.0)
        self.window = config.get("sliding_window")
        linear = torch.nn.Linear
        self.q_proj = linear(hidden, self.heads * self.head_dim, bias=False)
        self.k_proj = linear(hidden, self.kv_heads * self.head_dim, bias=False)
        self.v_proj = linear(hidden, self.kv_heads * self.head_dim, bias=False)
        self.o_proj = linear(self.heads * self.head_dim, hidden, bias=False)

    def rotated(self, x: torch.Tensor) -> torch.Tensor:
        """x [heads, tokens, head_dim]: element i turns with element i + head_dim / 2."""
        half = self.head_dim // 2
        frequencies = self.theta ** (-torch.arange(half, dtype=torch.float32) / half)
        angles = torch.arange(x.shape[1], dtype=torch.float32)[:, None] * frequencies
        cos, sin = angles.cos(), angles.sin()
        low, high = x[..., :half], x[..., half:]
        return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.shape[0]

        def heads_of(rows: torch.Tensor, count: int) -> torch.Tensor:
            return rows.view(tokens, count, self.head_dim).transpose(0, 1)

        group = self.heads // self.kv_heads
        q = self.rotated(heads_of(self.q_proj(x), self.heads))
        k = self.rotated(heads_of(self.k_proj(x), self.kv_heads)).repeat_interleave(group, 0)
        v = heads_of(self.v_proj(x), self.kv_heads).repeat_interleave(group, 0)
        query, key = torch.arange(tokens)[:, None], torch.arange(tokens)[None, :]
        hidden = key > query
        if self.window is not None:
            hidden |= key <= query - self.window
        scores = (q @ k.transpose(1, 2)) / math.sqrt(self.head_dim)
        mixed = scores.masked_fill(hidden, -math.inf).softmax(-1) @ v
        return self.o_proj(mixed.transpose(0, 1).reshape(tokens, -1))


class PlainMlp(torch.nn.Module):
    """down(activation(gate) * up), or with relu_up activation(gate) * relu(up)."""

    def __init__(self, config: dict, activation: Callable, relu_up: bool):
        super().__init__()
        hidden, neurons = config["hidden_size"], config["intermediate_size"]
        self.gate_proj = torch.nn.Linear(hidden, neurons, bias=False)
        self.up_proj = torch.nn.Linear(hidden, neurons, bias=False)
        self.down_proj = torch.nn.Linear(neurons, hidden, bias=False)
        self.activation = activation
        self.relu_up = relu_up

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        up = self.up_proj(x)
        up = torch.relu(up) if self.relu_up else up
        return self.down_proj(self.activation(self.gate_proj(x)) * up)


class PlainBlock(torch.nn.Module):
    def __init__(self, config: dict, mlp: PlainMlp):
        super().__init__()
        hidden, epsilon = config["hidden_size"], config["rms_norm_eps"]
        self.input_layernorm = PlainNorm(hidden, epsilon)
        self.self_attn = PlainAttention(config)
        self.post_attention_layernorm = PlainNorm(hidden, epsilon)
        self.mlp = mlp

    def forward(self, x: torch.Tensor, scale: float) -> torch.Tensor:
        x = x + scale * self.self_attn(self.input_layernorm(x))
        return x + scale * self.mlp(self.post_attention_layernorm(x))


class PlainDecoder(torch.nn.Module):
    """The architectures that transformers does not have, from what was published about them:

    - BambooForCausalLM (TurboSparse, Song et al. 2024, section 3): Mistral with a ReLU on either
      side of its MLPs.
    - MiniCPMForCausalLM (Hu et al. 2024, section 3.1): factors of the embedding, of what a block
      adds, and of the logits.
    - SparseLlamaForCausalLM with model_type llama_sparse_relu: ReLU, whatever hidden_act says.
    """

    def __init__(self, config: dict):
        super().__init__()
        architecture = config["architectures"][0]
        is_minicpm = architecture == "MiniCPMForCausalLM"
        activation: Callable = torch.relu
        if config["hidden_act"] == "fatrelu":
            activation = FatRelu(config["hidden_act_param"])
        hidden, vocabulary = config["hidden_size"], config["vocab_size"]
        layers = config["num_hidden_layers"]
        self.embedding_scale = config["scale_emb"] if is_minicpm else 1.0
        self.residual_scale = config["scale_depth"] / math.sqrt(layers) if is_minicpm else 1.0
        self.logit_scale = config["dim_model_base"] / hidden if is_minicpm else 1.0
        self.model = torch.nn.Module()
        self.model.embed_tokens = torch.nn.Embedding(vocabulary, hidden)
        relu_up = architecture == "BambooForCausalLM"
        self.model.layers = torch.nn.ModuleList(
            [PlainBlock(config, PlainMlp(config, activation, relu_up)) for _ in range(layers)]
        )
        self.model.norm = PlainNorm(hidden, config["rms_norm_eps"])
        self.lm_head = torch.nn.Linear(hidden, vocabulary, bias=False)
        if config["tie_word_embeddings"]:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, ids: torch.Tensor, use_cache: bool = False) -> SimpleNamespace:
        assert not use_cache
        x = self.model.embed_tokens(ids[0]) * self.embedding_scale
        for block in self.model.layers:
            x = block(x, self.residual_scale)
        logits = self.lm_head(self.model.norm(x) * self.logit_scale)
        return SimpleNamespace(logits=logits[None])


class FatRelu(torch.nn.Module):
    """x where x > threshold, else 0. transformers does not have it."""

    def __init__(self, threshold: float):
        super().__init__()
        self.threshold = threshold

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.where(x > self.threshold, x, torch.zeros_like(x))


def register_fatrelu(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    ACT2FN["fatrelu"] = (FatRelu, {"threshold": config.get("hidden_act_param", 0.0)})


def read_config(folder: Path) -> dict:
    return json.loads((folder / "config.json").read_text(encoding="utf-8"))


def load_plain(folder: Path) -> torch.nn.Module:
    model = PlainDecoder(read_config(folder))
    tensors = {name: t.float() for name, t in load_file(folder / "model.safetensors").items()}
    if model.lm_head.weight is model.model.embed_tokens.weight:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    model.load_state_dict(tensors)
    return model.eval()


def load_model(folder: Path, plain: bool) -> torch.nn.Module:
    """The model in float32, refusing files that do not name every tensor of the model."""
    if plain:
        return load_plain(folder)
    register_fatrelu(folder)
    model, info = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    if info["missing_keys"] or info["unexpected_keys"] or info["mismatched_keys"]:
        raise RuntimeError(f"{folder.name}: {info}")
    return model.eval()


def load_tokenizer(folder: Path) -> Any:
    path = folder / "tokenizer_config.json"
    if not path.exists():
        return None
    # Said again as an argument: transformers 5 drops add_bos_token of tokenizer_config.json where
    # there is a tokenizer.json (Llama's tokenizer class of transformers 4 did not).
    add_bos = json.loads(path.read_text(encoding="utf-8")).get("add_bos_token")
    return AutoTokenizer.from_pretrained(folder, **({"add_bos_token": True} if add_bos else {}))


@torch.no_grad()
def last_logits(model: torch.nn.Module, ids: list[int]) -> torch.Tensor:
    return model(torch.tensor([ids]), use_cache=False).logits[0, -1].float()


def greedy(model: torch.nn.Module, tokenizer: Any, prompt: str | None, ids: list[int]) -> dict:
    """The continuation by the largest logit. End-of-text tokens would not stop it."""
    prompt_logits = last_logits(model, ids)
    top5 = prompt_logits.topk(5)
    output: list[int] = []
    gaps: list[float] = []
    for _ in range(OUTPUT_TOKENS):
        best = last_logits(model, ids + output).topk(2)
        output.append(int(best.indices[0]))
        gaps.append(round(float(best.values[0] - best.values[1]), 6))
    text = None
    if tokenizer is not None:
        text = tokenizer.backend_tokenizer.decode(ids + output, skip_special_tokens=True)
    return {
        "prompt": prompt,
        "ids": ids,
        "top5_ids": top5.indices.tolist(),
        "top5_logits": [round(v, 6) for v in top5.values.tolist()],
        "output_ids": output,
        "top2_gaps": gaps,
        "text": text,
        "prompt_logits_last": [round(v, 6) for v in prompt_logits.tolist()],
    }


def reference(checkpoint: "Checkpoint", folder: Path) -> dict:
    model, tokenizer = load_model(folder, checkpoint.plain), load_tokenizer(folder)
    entries = []
    for prompt in checkpoint.prompts:
        if isinstance(prompt, str):
            entries.append(greedy(model, tokenizer, prompt, tokenizer(prompt)["input_ids"]))
        else:
            entries.append(greedy(model, None, None, prompt))
    samples = tokenizer_samples(tokenizer, checkpoint.special_samples) if tokenizer else []
    return {"what": WHAT, "greedy": entries, "tokenizer_samples": samples}


WHAT = (
    "Reference values, computed in float32 by PyTorch and Hugging Face transformers on the stored "
    "weights of this folder. greedy: ids include the BOS; top5 and prompt_logits_last belong to "
    "the last position of the prompt; top2_gaps is, for each token of output_ids, the largest "
    "logit minus the second; text is ids + output_ids decoded without special tokens. "
    "tokenizer_samples: ids without BOS; parse_special says whether special tokens in the text "
    "are recognised."
)


def write_reference(path: Path, value: dict) -> None:
    """JSON with one line for each entry."""
    parts = [f' "what": {json.dumps(value["what"])}']
    for key in ("greedy", "tokenizer_samples"):
        lines = ",\n".join("  " + json.dumps(entry) for entry in value[key])
        parts.append(f' "{key}": [\n{lines}\n ]' if lines else f' "{key}": []')
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


# ---------------------------------------------------------------------------------------------
# The checkpoints
# ---------------------------------------------------------------------------------------------

SHORT_PROMPT = "Once upon a time there was a king"
MIXED_PROMPT = "\tThe dragon's caf\u00e9 sold 12345 r\u00f4tis\r\n\r\n  \u65e5\u672c\u8a9e!"
LONG_PROMPT = (
    "The king's daughter, who was the youngest of the three, said to the old man: 'I have walked "
    "since the morning and I am tired; give me some bread, a cup of milk and a little water.'"
)
TEXT_PROMPTS = [SHORT_PROMPT, MIXED_PROMPT, LONG_PROMPT]


def id_prompts(vocab_size: int, lengths: tuple[int, ...]) -> list[list[int]]:
    """Random ids after the BOS, for checkpoints without a tokenizer."""
    random = np.random.RandomState(0)
    return [[1] + random.randint(3, vocab_size, n - 1).tolist() for n in lengths]


@dataclass
class Checkpoint:
    name: str
    config: Callable[[int, int], dict]  # of the number of tokens and the id of the BOS
    dtype: torch.dtype
    # Chosen among thousands so that the two largest logits never come close in the continuations:
    # they stay the same when transformers computes in the stored dtype. They do not get stuck on
    # one token either.
    seed: int
    prompts: list
    tokenizer: Callable[[Path], tuple[int, int]] | None = None
    special_samples: list[str] | None = None
    generation_config: Callable[[int, int], dict] | None = None
    strip_prefix: str = ""
    shards: int = 1
    plain: bool = False  # the reference is PlainDecoder's
    zeros: tuple[float, ...] = ()  # share of them in the linear layers of each block


def llama3_config(tokens: int, bos: int) -> dict:
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": bos,
        "eos_token_id": [bos + 1, bos + 2],
        "head_dim": 64,
        "hidden_act": "silu",
        "hidden_size": 32,
        "initializer_range": 0.02,
        "intermediate_size": 56,
        "max_position_embeddings": 512,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "factor": 8.0,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            # Small, so that the scaling changes most frequencies already in short prompts.
            "original_max_position_embeddings": 64,
            "rope_type": "llama3",
        },
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.43.0",
        "use_cache": True,
        "vocab_size": tokens,
    }


def llama3_generation_config(_tokens: int, bos: int) -> dict:
    return {
        "bos_token_id": bos,
        "do_sample": True,
        "eos_token_id": [bos + 1, bos + 2],
        "temperature": 0.6,
        "top_p": 0.9,
        "transformers_version": "4.43.0",
    }


def bias_config(_tokens: int, _bos: int) -> dict:
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "head_dim": 80,
        "hidden_act": "gelu",
        "hidden_size": 24,
        "intermediate_size": 48,
        "max_position_embeddings": 256,
        "mlp_bias": True,
        "model_type": "llama",
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "num_key_value_heads": 1,
        "pad_token_id": 0,
        "rms_norm_eps": 1e-06,
        "rope_scaling": {"factor": 2.0, "type": "linear"},
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "transformers_version": "4.41.0",
        "use_cache": True,
        "vocab_size": 300,
    }


def fatrelu_config(_tokens: int, _bos: int) -> dict:
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "bos_token_id": 1,
        "dtype": "float16",
        "eos_token_id": 2,
        "head_dim": 96,
        "hidden_act": "fatrelu",
        "hidden_act_param": 0.3,
        "hidden_size": 32,
        "intermediate_size": 88,
        "max_position_embeddings": 256,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "pad_token_id": None,
        "rms_norm_eps": 1e-05,
        "rope_parameters": {"rope_theta": 50000.0, "rope_type": "default"},
        "tie_word_embeddings": True,
        "transformers_version": "5.0.0",
        "use_cache": True,
        "vocab_size": 320,
    }


def six_heads_config(_tokens: int, _bos: int) -> dict:
    # Three ranks have 64, 64 and 74 neurons; of six, two have none. All have heads, and two of six
    # have the same one of keys and values.
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "head_dim": 64,
        "hidden_act": "relu",
        "hidden_size": 42,
        "intermediate_size": 202,
        "max_position_embeddings": 256,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": 6,
        "num_hidden_layers": 2,
        "num_key_value_heads": 3,
        "rms_norm_eps": 1e-05,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "float16",
        "transformers_version": "4.41.0",
        "use_cache": True,
        "vocab_size": 311,
    }


def opt_config(tokens: int, bos: int) -> dict:
    return {
        "_remove_final_layer_norm": False,
        "activation_dropout": 0.0,
        "activation_function": "gelu",
        "architectures": ["OPTForCausalLM"],
        "attention_dropout": 0.0,
        "bos_token_id": bos,
        "do_layer_norm_before": True,
        "dropout": 0.1,
        "enable_bias": True,
        "eos_token_id": bos,
        "ffn_dim": 72,
        "hidden_size": 128,
        "init_std": 0.02,
        "layer_norm_elementwise_affine": True,
        "layerdrop": 0.0,
        "max_position_embeddings": 144,
        "model_type": "opt",
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "pad_token_id": 1,
        "prefix": "</s>",
        "tie_word_embeddings": True,
        "torch_dtype": "float16",
        "transformers_version": "4.21.0",
        "use_cache": True,
        # Rows without a token, as the published OPT models have.
        "vocab_size": (tokens // 8 + 1) * 8,
        "word_embed_proj_dim": 128,
    }


def gelu_tanh_config(tokens: int, bos: int) -> dict:
    # Without num_key_value_heads, biases and rope_scaling, as in early Llama configs.
    return {
        "architectures": ["LlamaForCausalLM"],
        "bos_token_id": bos,
        "eos_token_id": bos,
        "head_dim": 128,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": 24,
        "intermediate_size": 64,
        "max_position_embeddings": 256,
        "model_type": "llama",
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "pad_token_id": bos + 1,
        "rms_norm_eps": 1e-05,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "float16",
        "transformers_version": "4.31.0",
        "use_cache": True,
        "vocab_size": tokens,
    }


def qwen2_config(tied: bool) -> Callable[[int, int], dict]:
    def config(tokens: int, _bos: int) -> dict:
        return {
            "architectures": ["Qwen2ForCausalLM"],
            "attention_dropout": 0.0,
            "bos_token_id": None,
            "eos_token_id": 2,
            "hidden_act": "silu",
            "hidden_size": 64 if tied else 48,
            "intermediate_size": 72,
            "max_position_embeddings": 256,
            "max_window_layers": 1,
            "model_type": "qwen2",
            "num_attention_heads": 4 if tied else 6,
            "num_hidden_layers": 2,
            "num_key_value_heads": 2,
            "rms_norm_eps": 1e-06,
            "rope_theta": 1000000.0,
            "sliding_window": 8,
            "tie_word_embeddings": tied,
            "torch_dtype": "bfloat16",
            "transformers_version": "4.43.1",
            "use_cache": True,
            "use_sliding_window": False,
            "vocab_size": 304,
        }

    return config


def qwen3_config(_tokens: int, _bos: int) -> dict:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "head_dim": 24,  # not hidden_size / num_attention_heads
        "hidden_act": "silu",
        "hidden_size": 48,
        "intermediate_size": 88,
        "max_position_embeddings": 256,
        "max_window_layers": 2,
        "model_type": "qwen3",
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 1000000.0,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.51.0",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": 308,
    }


def mistral_config(_tokens: int, _bos: int) -> dict:
    return {
        "architectures": ["MistralForCausalLM"],
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "head_dim": 32,
        "hidden_act": "silu",
        "hidden_size": 40,
        "intermediate_size": 64,
        "max_position_embeddings": 256,
        "model_type": "mistral",
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-05,
        "rope_theta": 10000.0,
        "sliding_window": 8,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.34.0",
        "use_cache": True,
        "vocab_size": 310,
    }


def bamboo_config(_tokens: int, _bos: int) -> dict:
    return {
        "architectures": ["BambooForCausalLM"],
        "attention_dropout": 0.0,
        "auto_map": {"AutoModelForCausalLM": "modeling_bamboo.BambooForCausalLM"},
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "relu",
        "hidden_size": 64,
        "intermediate_size": 136,
        "max_position_embeddings": 256,
        "model_type": "bamboo",
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-05,
        "rope_theta": 10000.0,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "torch_dtype": "float16",
        "transformers_version": "4.37.0",
        "use_cache": True,
        "vocab_size": 312,
    }


def minicpm_config(_tokens: int, _bos: int) -> dict:
    return {
        "architectures": ["MiniCPMForCausalLM"],
        "auto_map": {"AutoModelForCausalLM": "modeling_minicpm.MiniCPMForCausalLM"},
        "bos_token_id": 1,
        "dim_model_base": 36,
        "eos_token_id": 2,
        "hidden_act": "fatrelu",
        "hidden_act_param": 0.05,
        "hidden_size": 48,
        "intermediate_size": 120,
        "max_position_embeddings": 256,
        "model_type": "minicpm",
        "num_attention_heads": 6,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-05,
        "rope_scaling": None,
        "scale_depth": 1.4,
        "scale_emb": 3,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.36.0",
        "use_cache": True,
        "vocab_size": 316,
    }


def sparse_relu_config(_tokens: int, _bos: int) -> dict:
    return {
        "architectures": ["SparseLlamaForCausalLM"],
        "attention_bias": False,
        "auto_map": {"AutoModelForCausalLM": "modeling_sparse_llama.SparseLlamaForCausalLM"},
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "hidden_size": 32,
        "intermediate_size": 96,
        "max_position_embeddings": 256,
        "mlp_bias": False,
        "model_type": "llama_sparse_relu",
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-05,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.43.3",
        "use_cache": True,
        "vocab_size": 300,
    }


CHECKPOINTS = [
    Checkpoint(
        name="llama3",
        config=llama3_config,
        dtype=torch.bfloat16,
        seed=2129,
        prompts=TEXT_PROMPTS,
        tokenizer=llama3_tokenizer,
        special_samples=LLAMA3_SPECIAL_SAMPLES,
        generation_config=llama3_generation_config,
        shards=2,
    ),
    Checkpoint(
        name="llama_bias",
        config=bias_config,
        dtype=torch.float32,
        seed=2567,
        prompts=id_prompts(300, (5, 33, 130)),
    ),
    Checkpoint(
        name="llama_fatrelu",
        config=fatrelu_config,
        dtype=torch.float16,
        seed=1767,
        prompts=id_prompts(320, (1, 16, 117)),
        strip_prefix="model.",
    ),
    Checkpoint(
        name="llama_six_heads",
        config=six_heads_config,
        dtype=torch.float16,
        seed=2212,
        prompts=id_prompts(311, (3, 21, 101)),
        zeros=(0.65, 0.79),  # where the layout of records changes: shares lie on both sides of it
    ),
    Checkpoint(
        name="opt_gelu",
        config=opt_config,
        dtype=torch.float16,
        seed=4,
        prompts=TEXT_PROMPTS,
        tokenizer=opt_tokenizer,
        special_samples=SLASH_S_SPECIAL_SAMPLES,
        strip_prefix="model.",
    ),
    Checkpoint(
        name="llama_gelu_tanh",
        config=gelu_tanh_config,
        dtype=torch.float16,
        seed=110,
        prompts=TEXT_PROMPTS,
        tokenizer=gpt2_tokenizer,
        special_samples=SLASH_S_SPECIAL_SAMPLES,
    ),
    Checkpoint(
        name="qwen2_tied",
        config=qwen2_config(tied=True),
        dtype=torch.bfloat16,
        seed=1816,
        prompts=id_prompts(304, (4, 19, 90)),
    ),
    Checkpoint(
        name="qwen2_untied",
        config=qwen2_config(tied=False),
        dtype=torch.bfloat16,
        seed=997,
        prompts=id_prompts(304, (2, 31, 77)),
    ),
    Checkpoint(
        name="qwen3",
        config=qwen3_config,
        dtype=torch.bfloat16,
        seed=169,
        prompts=id_prompts(308, (3, 23, 85)),
    ),
    Checkpoint(
        name="mistral_window",
        config=mistral_config,
        dtype=torch.bfloat16,
        seed=116,
        prompts=id_prompts(310, (3, 9, 40)),
    ),
    Checkpoint(
        name="bamboo",
        config=bamboo_config,
        dtype=torch.float16,
        seed=9,
        prompts=id_prompts(312, (3, 25, 80)),
        plain=True,
    ),
    Checkpoint(
        name="minicpm",
        config=minicpm_config,
        dtype=torch.bfloat16,
        seed=40,
        prompts=id_prompts(316, (3, 25, 80)),
        plain=True,
    ),
    Checkpoint(
        name="llama_sparse_relu",
        config=sparse_relu_config,
        dtype=torch.bfloat16,
        seed=279,
        prompts=id_prompts(300, (3, 25, 80)),
        plain=True,
    ),
]


def write_config(checkpoint: Checkpoint, folder: Path) -> None:
    """config.json by hand: transformers would write every key in its newest spelling."""
    tokens, bos = checkpoint.tokenizer(folder) if checkpoint.tokenizer else (0, 0)
    write_json(folder / "config.json", checkpoint.config(tokens, bos))
    if checkpoint.generation_config:
        value = checkpoint.generation_config(tokens, bos)
        write_json(folder / "generation_config.json", value)


def make(checkpoint: Checkpoint, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_config(checkpoint, folder)
    register_fatrelu(folder)
    save_weights(folder, random_weights(checkpoint, folder, checkpoint.seed), checkpoint.shards)
    write_reference(folder / "reference.json", reference(checkpoint, folder))


def same(left: Any, right: Any) -> bool:
    """Equal, but for the last digits of floats."""
    if isinstance(left, float) and isinstance(right, float):
        return abs(left - right) <= CHECK_TOLERANCE
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
    return left == right


def check(checkpoint: Checkpoint, folder: Path) -> None:
    stored = json.loads((folder / "reference.json").read_text(encoding="utf-8"))
    if not same(stored, reference(checkpoint, folder)):
        raise SystemExit(f"{folder}: reference.json is not what the files give")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=HERE / "tiny", metavar="DIR")
    parser.add_argument("--check", action="store_true", help="compare with existing files only")
    args = parser.parse_args()
    logging.disable_progress_bar()
    for checkpoint in CHECKPOINTS:
        folder = args.output / checkpoint.name
        if args.check:
            check(checkpoint, folder)
        else:
            make(checkpoint, folder)
        size = sum(f.stat().st_size for f in folder.iterdir())
        print(f"{checkpoint.name}: {size // 1024} KiB{', reference matches' if args.check else ''}")


if __name__ == "__main__":
    main()
