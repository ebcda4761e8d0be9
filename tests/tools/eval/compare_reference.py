#!/usr/bin/env python3
"""Computes in numpy what compare_test.cpp expects of `sparsellm-eval compare`.

Model A is a Llama checkpoint with f16 weights, model B the same with every weight rounded to bf16.
The forward pass is written here from the definitions of the Llama architecture, in float64, and
shares nothing with the engine. Needs the packages numpy and sentencepiece.

  python3 tests/tools/eval/compare_reference.py
"""

import argparse
import json
import pathlib
import struct

import numpy as np
import sentencepiece

ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0.0),
    "silu": lambda x: x / (1.0 + np.exp(-x)),
}


def read_weights(path):
    """The f16 tensors of a safetensors file, as float32."""
    data = path.read_bytes()
    (header_size,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + header_size])
    header.pop("__metadata__", None)
    weights = {}
    for name, entry in header.items():
        assert entry["dtype"] == "F16", (name, entry["dtype"])
        begin, end = (8 + header_size + offset for offset in entry["data_offsets"])
        values = np.frombuffer(data[begin:end], dtype="<f2")
        weights[name] = values.reshape(entry["shape"]).astype(np.float32)
    return weights


def round_to_bf16(values):
    """To the nearest bf16, ties to even; finite values only."""
    bits = values.view(np.uint32).astype(np.uint64)
    lower_half = bits & 0xFFFF
    bits = bits - lower_half
    is_odd = (bits >> 16) & 1
    up = (lower_half > 0x8000) | ((lower_half == 0x8000) & (is_odd == 1))
    return (bits + up * np.uint64(0x10000)).astype(np.uint32).view(np.float32)


def rms_norm(x, weight, epsilon):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + epsilon) * weight


def rotate(x, theta):
    """RoPE on x [tokens, heads, head_dim]; the pairs are the elements i and i + head_dim / 2."""
    tokens, _, head_dim = x.shape
    half = head_dim // 2
    frequencies = theta ** (-np.arange(half) / half)
    angles = np.arange(tokens)[:, None, None] * frequencies
    first, second = x[..., :half], x[..., half:]
    return np.concatenate(
        [
            first * np.cos(angles) - second * np.sin(angles),
            second * np.cos(angles) + first * np.sin(angles),
        ],
        axis=-1,
    )


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def log_softmax(x):
    shifted = x - x.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def forward(weights, config, ids):
    """Logits [tokens, vocabulary] of one window."""
    heads = config["num_attention_heads"]
    kv_heads = config["num_key_value_heads"]
    head_dim = config["head_dim"]
    theta = config["rope_theta"]
    epsilon = config["rms_norm_eps"]
    activation = ACTIVATIONS[config["hidden_act"]]
    tokens = len(ids)
    future = np.triu(np.ones((tokens, tokens), dtype=bool), k=1)

    x = weights["model.embed_tokens.weight"][ids]
    for number in range(config["num_hidden_layers"]):

        def weight(name):
            return weights[f"model.layers.{number}.{name}.weight"]

        h = rms_norm(x, weight("input_layernorm"), epsilon)
        q = rotate((h @ weight("self_attn.q_proj").T).reshape(tokens, heads, head_dim), theta)
        k = rotate((h @ weight("self_attn.k_proj").T).reshape(tokens, kv_heads, head_dim), theta)
        v = (h @ weight("self_attn.v_proj").T).reshape(tokens, kv_heads, head_dim)
        attended = np.empty_like(q)
        for head in range(heads):
            kv_head = head * kv_heads // heads
            scores = q[:, head] @ k[:, kv_head].T / np.sqrt(head_dim)
            scores[future] = -np.inf
            attended[:, head] = softmax(scores) @ v[:, kv_head]
        x = x + attended.reshape(tokens, -1) @ weight("self_attn.o_proj").T

        h = rms_norm(x, weight("post_attention_layernorm"), epsilon)
        gate = activation(h @ weight("mlp.gate_proj").T)
        x = x + (gate * (h @ weight("mlp.up_proj").T)) @ weight("mlp.down_proj").T

    x = rms_norm(x, weights["model.norm.weight"], epsilon)
    head = "model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"
    return x @ weights[head].T


def main():
    data = pathlib.Path(__file__).resolve().parent.parent / "data"
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

    tokenizer = sentencepiece.SentencePieceProcessor(str(args.model / "tokenizer.model"))
    text = args.text.read_bytes()[: args.bytes].decode()
    ids = tokenizer.encode(text)
    stride = args.context - 1

    kl, nll_a, nll_b, agree, gaps = [], [], [], [], []
    for begin in range(0, len(ids) - stride + 1, stride):
        window = [tokenizer.bos_id()] + ids[begin : begin + stride]
        log_p = log_softmax(forward(a, config, window))[:-1]
        log_q = log_softmax(forward(b, config, window))[:-1]
        kl.extend((np.exp(log_p) * (log_p - log_q)).sum(axis=-1))
        rows = np.arange(stride)
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
