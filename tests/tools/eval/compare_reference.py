#!/usr/bin/env python3
"""Computes in numpy what compare_test.cpp expects of `sparsellm-eval compare`.

Model A is a Llama checkpoint with f16 weights, model B the same with every weight rounded to bf16.
The forward pass is that of numpy_model.py, in float64. Needs the packages numpy and sentencepiece.

  python3 tests/tools/eval/compare_reference.py
"""

import argparse
import json
import pathlib

import numpy as np

from numpy_model import forward, load_tokenizer, log_softmax, read_weights, windows_of


def round_to_bf16(values):
    """To the nearest bf16, ties to even; finite values only."""
    bits = values.view(np.uint32).astype(np.uint64)
    lower_half = bits & 0xFFFF
    bits = bits - lower_half
    is_odd = (bits >> 16) & 1
    up = (lower_half > 0x8000) | ((lower_half == 0x8000) & (is_odd == 1))
    return (bits + up * np.uint64(0x10000)).astype(np.uint32).view(np.float32)


def main():
    data = pathlib.Path(__file__).resolve().parents[2] / "data"
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=pathlib.Path, default=data / "models/fable-llama-relu-8m")
    parser.add_argument("--text", type=pathlib.Path, default=data / "text/peter_pan.txt")
    parser.add_argument("--bytes", type=int, default=4096, help="of the text that are used")
    parser.add_argument("--context", type=int, default=128)
    args = parser.parse_args()

    config = json.loads((args.model / "config.json").read_text())
    stored = read_weights(args.model / "model.safetensors")
    a = {name: values.astype(np.float64) for name, values in stored.items()}
    b = {name: round_to_bf16(values).astype(np.float64) for name, values in stored.items()}

    text = args.text.read_bytes()[: args.bytes].decode()
    ids = load_tokenizer(args.model)(text)
    rows = np.arange(args.context - 1)

    kl, nll_a, nll_b, agree, gaps = [], [], [], [], []
    for window in windows_of(ids, config["bos_token_id"], args.context):
        log_p = log_softmax(forward(a, config, window))[:-1]
        log_q = log_softmax(forward(b, config, window))[:-1]
        kl.extend((np.exp(log_p) * (log_p - log_q)).sum(axis=-1))
        nll_a.extend(-log_p[rows, window[1:]])
        nll_b.extend(-log_q[rows, window[1:]])
        agree.extend(log_p.argmax(axis=-1) == log_q.argmax(axis=-1))
        gaps.extend(log_p.max(axis=-1) - log_p[rows, log_q.argmax(axis=-1)])

    def standard_error(sample):
        return np.std(sample, ddof=1) / np.sqrt(len(sample))

    kl, nll_a, nll_b = np.array(kl), np.array(nll_a), np.array(nll_b)
    ratio = np.exp(np.mean(nll_b - nll_a))
    figures = {
        "tokens": len(kl),
        "kl_mean": np.mean(kl),
        "kl_standard_error": standard_error(kl),
        "kl_median": np.median(kl),
        "kl_99": np.quantile(kl, 0.99),
        "kl_999": np.quantile(kl, 0.999),
        "kl_max": np.max(kl),
        "worst_position": int(np.argmax(kl)),
        "agreeing_tokens": int(np.sum(agree)),
        "top1_gap_max": np.max(gaps),
        "perplexity_a": np.exp(np.mean(nll_a)),
        "perplexity_a_standard_error": np.exp(np.mean(nll_a)) * standard_error(nll_a),
        "perplexity_b": np.exp(np.mean(nll_b)),
        "perplexity_b_standard_error": np.exp(np.mean(nll_b)) * standard_error(nll_b),
        "perplexity_ratio": ratio,
        "perplexity_ratio_standard_error": ratio * standard_error(nll_b - nll_a),
    }
    for name, value in figures.items():
        print(f"{name:32} {value:.10g}")


if __name__ == "__main__":
    main()
