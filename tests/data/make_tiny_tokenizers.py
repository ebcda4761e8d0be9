#!/usr/bin/env python3
"""Trains the tokenizers of tests/data/tokenizers and writes what the package tokenizers makes of them.

    python3 tests/data/make_tiny_tokenizers.py [--output DIR]

Each folder gets a tokenizer.json of a few hundred tokens and a golden.json: texts with their ids and
with the text that the ids become again, and ids with their text. Some have variants, in which parts
of the tokenizer.json are replaced. Needs the Python package tokenizers (0.23) and no download.
"""

import argparse
import copy
import json
import random
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers, processors, trainers

DATA = Path(__file__).resolve().parent
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
SPECIAL = ["<unk>", "<s>", "</s>"]

# Latin, Greek, Cyrillic, Hebrew, Arabic, Devanagari, Bengali, Tamil, Thai, Khmer, Korean, Japanese,
# Chinese, emoji, in both normalization forms where there are two.
SCRIPTS = [
    "The old king's café was naïve — 'quite' so; Ångström, ﬁ, ẞ, İı.",
    "cafe\u0301 nai\u0308ve A\u030angstro\u0308m o\u0328\u0304 a\u0323\u0302 \u212b \u2126 \u212a",
    "Ἐν ἀρχῇ ἦν ὁ λόγος, ά \u1f71 \u03b1\u0313\u0300\u0345 \u1fbe\u0308\u0301",
    "Жил-был ёж, йод \u0435\u0308\u0436 \u0438\u0306",
    "שָׁלוֹם עולם \ufb2a \u05e9\u05c1\u05b8",
    "مرحبا بالعالم \u0627\u0653 \u0628\u064e\u0651 ١٢٣",
    "नमस्ते दुनिया क़ \u0958 \u0928\u093c \u0930\u093c",
    "ওহে বিশ্ব \u09c7\u09be \u09c7\u09d7 ড়",
    "வணக்கம் உலகம் \u0bc6\u0bbe கொ",
    "สวัสดีชาวโลก น้ำ",
    "សួស្តី\u200bពិភពលោក",
    "안녕하세요 세계 \u110b\u1161\u11ab\u1102\u1167\u11bc \u1112\u1161\u11ab\u1100\u1173\u11af",
    "こんにちは世界、ガギ \u304b\u3099\u304d\u3099 \u30cf\u309a ｶﾞ",
    "你好，世界。\uf900 \u2f800 \U0002f800 𠀀",
    "👩\u200d👩\u200d👧\u200d👦 🏳\ufe0f\u200d🌈 👍🏽 🇩🇪 1\ufe0f\u20e3",
    "\U0001d15e \U0001d160 \u0344 \u0f73\u0f71 q\u0307\u0323 q\u0323\u0307",
]
SPACES = [
    "", " ", "  ", "   ", "a", " a", "  a", "a ", "a  ", " a  b   c ", "a\nb", "\n", " \n ", "\t\ta",
    "a\r\n\r\nb", "a\u00a0b\u3000c\u2003d", "\u2581", "\u2581a", " \u2581 a\u2581\u2581b \u2581",
    "x y  z   w    v", "hello world", "Hello  World", "    indented\n        more", "a-b--c---d",
    "-a", "a-", "--", "1 22 333 4444", "a1b22c333", "a, b; c. d!",
]  # fmt: skip
CONTROL = ["\x00", "a\x00b", "\x01\x02\x7f\x80\x85\x9f", "\ufeffa", "a\u200bb\u2028c\u2029d", "\ufffd"]
ADDED = [
    "<s>", "</s>", "<unk>", "<s>a", "<s> a", "a<s>b", "a <s> b", " <s> ", "<s><s>", "<s> <s>", "a</s>",
    "<mask>", "a<mask>b", "a <mask> b", "a  <mask>  b", "<l>  <r>", "a <l> b", "a <r> b", "\n<l>\n",
    "caf\u00e9!", "cafe\u0301!", "x caf\u00e9!y", "x cafe\u0301!y", "<s>cafe\u0301!<s>",
    "<s>\u0301", "a<s>\u0301b", "e<l>\u0301", "cafe\u0301!\u0323", "\u0301<r>\u0301", "\u1161<s>\u1161",
    "\u1100<s>\u1161", "wow", " wow", "a wow b", "wowwow", "<s>wow", "<s> wow", "awowb",
    "<0x41>", "<0xE3><0x81>", "a<0x0A>b",
]  # fmt: skip
TEXTS = SCRIPTS + SPACES + CONTROL + ADDED + [
    "All children, except one, grow up. They soon know that they will grow up.",
    "def f(x):\n    return x**2  # ok\n\n\nprint(f(3.14), 'done')\n",
    "1,234,567.89 + 0x1F = ???",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "e\u0301" * 20,
    "ünïcödé " * 5,
]

LLAMA_DECODER = decoders.Sequence(
    [
        decoders.Replace("▁", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ]
)
QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)


def corpus():
    text = (DATA / "text" / "peter_pan.txt").read_text(encoding="utf-8")[:60000]
    return [text[i : i + 200] for i in range(0, len(text), 200)] + SCRIPTS * 6 + SPACES * 6


def bos_template(tokenizer):
    return processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )


def train_characters(vocab_size, byte_fallback, **model):
    """A tokenizer of characters whose tokens go over the borders of words."""
    special = SPECIAL + (BYTES if byte_fallback else [])
    tokenizer = Tokenizer(
        models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=byte_fallback, **model)
    )
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size + len(special),
        limit_alphabet=160,
        special_tokens=special,
        max_token_length=12,
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    # Bytes are ordinary tokens; only the trainer takes them for special ones.
    state = json.loads(tokenizer.to_str())
    state["added_tokens"] = [t for t in state["added_tokens"] if t["content"] in SPECIAL]
    state["normalizer"] = None
    return Tokenizer.from_str(json.dumps(state))


def add_tokens(tokenizer):
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, normalized=False)])
    tokenizer.add_tokens(
        [
            AddedToken("<l>", lstrip=True, normalized=False),
            AddedToken("<r>", rstrip=True, normalized=False),
            AddedToken("caf\u00e9!", normalized=True),
            AddedToken("wow", normalized=True),
        ]
    )


def llama2():
    tokenizer = train_characters(450, byte_fallback=True)
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = LLAMA_DECODER
    tokenizer.post_processor = bos_template(tokenizer)
    add_tokens(tokenizer)
    nfc = {"type": "NFC"}
    own = json.loads(tokenizer.to_str())["normalizer"]["normalizers"]
    return tokenizer, [
        {},
        {"normalizer": {"type": "Sequence", "normalizers": [nfc, *own]}},
        {"normalizer": {"type": "Sequence", "normalizers": [*own, nfc]}},
    ]


def metaspace(scheme, split, **model):
    tokenizer = train_characters(450, **model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=split)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=scheme, split=split)
    tokenizer.post_processor = bos_template(tokenizer)
    add_tokens(tokenizer)
    return tokenizer


def mistral():
    tokenizer = metaspace("first", False, byte_fallback=True)
    metaspace_decoder = json.loads(tokenizer.to_str())["decoder"]
    tokenizer.decoder = LLAMA_DECODER
    own = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True}
    return tokenizer, [
        {},
        {"pre_tokenizer": own},
        {"decoder": metaspace_decoder},
        {"pre_tokenizer": own, "normalizer": {"type": "NFC"}},
    ]


def metaspace_always():
    old = {"type": "Metaspace", "replacement": "▁", "add_prefix_space": True}
    return metaspace("always", True, byte_fallback=True), [{}, {"pre_tokenizer": old, "decoder": old}]


def metaspace_never():
    tokenizer = metaspace("never", True, byte_fallback=False)
    model = json.loads(tokenizer.to_str())["model"]
    return tokenizer, [{}, {"model": dict(model, fuse_unk=False)}, {"model": dict(model, ignore_merges=True)}]


def split(pattern, behavior, invert=False):
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}


BEHAVIORS = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]


def gemma():
    tokenizer = train_characters(450, byte_fallback=True)
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    add_tokens(tokenizer)
    variants = [
        {"pre_tokenizer": split({"String": "▁"}, behavior, invert)}
        for behavior in BEHAVIORS
        for invert in (False, True)
    ]
    return tokenizer, [{}, *variants]


def qwen2():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>", "<unk>"])
    add_tokens(tokenizer)
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": False,
        "use_regex": False,
    }
    variants = [
        {
            "pre_tokenizer": {
                "type": "Sequence",
                "pretokenizers": [split({"Regex": r"\s|-"}, behavior, invert), byte_level],
            }
        }
        for behavior in BEHAVIORS
        for invert in (False, True)
    ]
    return tokenizer, [{}, *variants]


def changed(tokenizer, variant):
    return Tokenizer.from_str(json.dumps({**json.loads(tokenizer.to_str()), **variant}))


def samples(tokenizer, texts):
    for parse_special in (True, False):
        tokenizer.encode_special_tokens = not parse_special
        for text in texts:
            # The same where there is no special token in the text.
            if parse_special or any(token in text for token in (*SPECIAL, "<mask>")):
                ids = tokenizer.encode(text).ids
                yield [text, int(parse_special), ids, tokenizer.decode(ids)]


def decoded(tokenizer, byte_fallback):
    """Ids of all kinds in any order; no bytes beside bytes that are no UTF-8 (see tokenizer.h)."""
    rng = random.Random(1)
    size = tokenizer.get_vocab_size()
    is_byte = [(tokenizer.id_to_token(i) or "") in BYTES for i in range(size)]
    for _ in range(40):
        ids = []
        while len(ids) < 6:
            i = rng.randrange(size)
            if not (byte_fallback and is_byte[i] and ids and is_byte[ids[-1]]):
                ids.append(i)
        yield [ids, tokenizer.decode(ids)]


def write(folder, tokenizer, variants):
    folder.mkdir(parents=True, exist_ok=True)
    state = json.loads(tokenizer.to_str())
    text = json.dumps(state, ensure_ascii=False, separators=(",", ":"))
    (folder / "tokenizer.json").write_text(text + "\n", encoding="utf-8")
    byte_fallback = state["model"]["byte_fallback"]
    golden = []
    for number, variant in enumerate(variants):
        one = changed(tokenizer, variant)
        texts = TEXTS if number == 0 else SPACES + ADDED[:30] + SCRIPTS[:4] + SCRIPTS[-2:]
        golden.append(
            {
                "changes": variant if "model" not in variant else model_changes(state, variant),
                "samples": list(samples(one, texts)),
                "decoded": list(decoded(copy.deepcopy(one), byte_fallback)) if number == 0 else [],
            }
        )
    lines = json.dumps(golden, separators=(",", ":"))
    (folder / "golden.json").write_text(lines + "\n", encoding="utf-8")


def model_changes(state, variant):
    model = {k: v for k, v in variant["model"].items() if state["model"][k] != v}
    return {**{k: v for k, v in variant.items() if k != "model"}, "model": model}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=DATA / "tokenizers")
    output = parser.parse_args().output
    for make in (llama2, mistral, metaspace_always, metaspace_never, gemma, qwen2):
        write(output / make.__name__, *make())


if __name__ == "__main__":
    main()
