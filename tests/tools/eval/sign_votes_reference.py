#!/usr/bin/env python3
"""Computes in numpy how well the votes of signs tell which neurons of a ReLU model are zero.

Prints for every layer, over the tokens of windows of a text but for the BOS that each begins with:
  zeros      the share of neurons that are zero
  skipped    the share that is predicted to be zero: alpha * N_pos < N_neg, in float32
  precision  the share of what is skipped that is zero
  recall     the share of what is zero that is skipped
The model is a Llama or an OPT with ReLU and f16 weights; the forward pass is that of
numpy_model.py, in float32. What the votes are says sparse/activation/sign_predictor.h. Needs the
packages numpy and, unless token ids are given, sentencepiece (Llama) or tokenizers (OPT).

  python3 tests/tools/eval/sign_votes_reference.py --model tests/data/models/fable-opt-8m
"""

import argparse
import json
import pathlib

import numpy as np

from numpy_model import forward, load_tokenizer, read_weights, windows_of


def sum_in_pairs(x):
    """Sums of the last axis, in the order that sign_predictor.h fixes."""
    size = 1 << (x.shape[-1] - 1).bit_length()
    x = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, size - x.shape[-1])])
    while x.shape[-1] > 1:
        x = x[..., 0::2] + x[..., 1::2]
    return x[..., 0]


def votes_of(x, kind):
    """What each element of x [tokens, columns] counts."""
    with np.errstate(all="ignore"):
        scale = np.float32(5) / np.sqrt(sum_in_pairs(x * x) / np.float32(x.shape[-1]))
        usable = np.isfinite(scale) & (scale > 0)
        votes = np.minimum(np.rint(np.abs(x) * scale[:, None]), np.float32(15))
    if kind == "sign":
        votes = np.ones_like(x)
    return np.where(usable[:, None], votes, np.float32(0))


def count_votes(x, w, kind):
    """N_neg and N_pos [tokens, neurons]; whole numbers that float32 holds."""
    weighted = np.sign(x) * votes_of(x, kind)
    difference = weighted @ np.sign(w).T  # N_pos - N_neg
    total = np.abs(weighted) @ np.abs(np.sign(w)).T
    return (total - difference) / 2, (total + difference) / 2


def main():
    data = pathlib.Path(__file__).resolve().parents[2] / "data"
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=pathlib.Path, default=data / "models/fable-llama-relu-8m")
    parser.add_argument("--text", type=pathlib.Path, default=data / "text/peter_pan.txt")
    parser.add_argument("--ids", type=pathlib.Path, help="a file of token ids instead of a text")
    parser.add_argument("--tokens", type=int, default=4096, help="of the text that are used")
    parser.add_argument("--context", type=int, default=512, help="tokens of a window")
    parser.add_argument("--alpha", type=float, default=1.0)
    parser.add_argument("--votes", choices=["sign", "weighted"], default="sign")
    parser.add_argument("--relu", action="store_true", help="instead of the model's activation")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    args = parser.parse_args()

    config = json.loads((args.model / "config.json").read_text())
    key = "hidden_act" if "hidden_act" in config else "activation_function"
    if args.relu:
        config[key] = "relu"
    activation = config[key]
    if activation != "relu":
        parser.error(f"{args.model} has the activation {activation}; use a model with relu")
    weights = read_weights(args.model / "model.safetensors")
    if args.ids:
        ids = [int(word) for word in args.ids.read_text().split()]
    else:
        ids = load_tokenizer(args.model)(args.text.read_text(encoding="utf-8"))
    windows = list(windows_of(ids[: args.tokens], config["bos_token_id"], args.context))
    if not windows:
        parser.error(f"{len(ids)} tokens are less than one window of {args.context}")

    layers = config["num_hidden_layers"]
    neurons, zeros, skipped, hits = np.zeros((4, layers), dtype=np.int64)

    def on_mlp(layer, x, w, activated):
        negative, positive = count_votes(x[1:], w, args.votes)
        is_zero = activated[1:] == 0
        is_skipped = np.float32(args.alpha) * positive < negative
        neurons[layer] += is_zero.size
        zeros[layer] += is_zero.sum()
        skipped[layer] += is_skipped.sum()
        hits[layer] += (is_zero & is_skipped).sum()

    for window in windows:
        forward(weights, config, window, on_mlp)

    rows = [
        {
            "layer": layer,
            "zeros": zeros[layer] / neurons[layer],
            "skipped": skipped[layer] / neurons[layer],
            "precision": hits[layer] / skipped[layer] if skipped[layer] else 1.0,
            "recall": hits[layer] / zeros[layer] if zeros[layer] else 1.0,
        }
        for layer in range(layers)
    ]
    scored = sum(len(window) - 1 for window in windows)
    if args.json:
        report = {"votes": args.votes, "alpha": args.alpha, "tokens": scored, "layers": rows}
        print(json.dumps(report, indent=1))
        return
    print(f"{args.votes} votes, alpha {args.alpha:g}, {scored} tokens in {len(windows)} windows")
    print("layer   zeros  skipped  precision  recall")
    line = "{layer:5d}  {zeros:.4f}   {skipped:.4f}     {precision:.4f}  {recall:.4f}"
    for row in rows:
        print(line.format(**row))
    print(f"  all  {zeros.sum() / neurons.sum():.4f}   {skipped.sum() / neurons.sum():.4f}")


if __name__ == "__main__":
    main()
