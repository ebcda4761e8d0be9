"""The forward pass of Llama and of OPT in numpy, written from the definitions of the architectures:
it shares nothing with the engine. It computes in the dtype of the weights that it is given.
"""

import json
import struct

import numpy as np

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


def load_tokenizer(model):
    """What makes token ids of a text, without BOS."""
    if (model / "tokenizer.model").exists():
        import sentencepiece

        return sentencepiece.SentencePieceProcessor(str(model / "tokenizer.model")).encode
    import tokenizers

    tokenizer = tokenizers.ByteLevelBPETokenizer(
        str(model / "vocab.json"), str(model / "merges.txt")
    )
    return lambda text: tokenizer.encode(text).ids


def windows_of(ids, bos, context):
    """The windows of `sparsellm-eval` in the protocol `windows`."""
    stride = context - 1
    for begin in range(0, len(ids) - stride + 1, stride):
        yield [bos] + ids[begin : begin + stride]


def rms_norm(x, weight, epsilon):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + epsilon) * weight


def layer_norm(x, weight, bias, epsilon=1e-5):
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = np.mean(centred * centred, axis=-1, keepdims=True)
    return centred / np.sqrt(variance + epsilon) * weight + bias


def rotate(x, theta):
    """RoPE on x [tokens, heads, head_dim]; the pairs are the elements i and i + head_dim / 2."""
    tokens, _, head_dim = x.shape
    half = head_dim // 2
    frequencies = theta ** (-np.arange(half) / half)
    angles = np.arange(tokens)[:, None, None] * frequencies
    cos, sin = np.cos(angles).astype(x.dtype), np.sin(angles).astype(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def log_softmax(x):
    shifted = x - x.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def attention(q, k, v):
    """Causal attention of q [tokens, heads, head_dim] -> [tokens, heads * head_dim]."""
    tokens, heads, head_dim = q.shape
    future = np.triu(np.ones((tokens, tokens), dtype=bool), k=1)
    attended = np.empty_like(q)
    for head in range(heads):
        kv_head = head * k.shape[1] // heads
        scores = q[:, head] @ k[:, kv_head].T / q.dtype.type(np.sqrt(head_dim))
        scores[future] = -np.inf
        attended[:, head] = softmax(scores) @ v[:, kv_head]
    return attended.reshape(tokens, -1)


def llama(weights, config, ids, on_mlp):
    heads = config["num_attention_heads"]
    kv_heads = config["num_key_value_heads"]
    head_dim = config["head_dim"]
    theta = config["rope_theta"]
    epsilon = config["rms_norm_eps"]
    activation = ACTIVATIONS[config["hidden_act"]]

    x = weights["model.embed_tokens.weight"][ids]
    for number in range(config["num_hidden_layers"]):

        def weight(name):
            return weights[f"model.layers.{number}.{name}.weight"]

        h = rms_norm(x, weight("input_layernorm"), epsilon)
        q = (h @ weight("self_attn.q_proj").T).reshape(-1, heads, head_dim)
        k = (h @ weight("self_attn.k_proj").T).reshape(-1, kv_heads, head_dim)
        v = (h @ weight("self_attn.v_proj").T).reshape(-1, kv_heads, head_dim)
        attended = attention(rotate(q, theta), rotate(k, theta), v)
        x = x + attended @ weight("self_attn.o_proj").T

        h = rms_norm(x, weight("post_attention_layernorm"), epsilon)
        gate = activation(h @ weight("mlp.gate_proj").T)
        on_mlp(number, h, weight("mlp.gate_proj"), gate)
        x = x + (gate * (h @ weight("mlp.up_proj").T)) @ weight("mlp.down_proj").T

    x = rms_norm(x, weights["model.norm.weight"], epsilon)
    head = "model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"
    return x @ weights[head].T


def opt(weights, config, ids, on_mlp):
    heads = config["num_attention_heads"]
    activation = ACTIVATIONS[config["activation_function"]]

    def norm(x, name):
        return layer_norm(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    def linear(x, name):
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    if "decoder.embed_tokens.weight" in weights:  # as older checkpoints have it
        weights = {f"model.{name}": weight for name, weight in weights.items()}
    embedding = weights["model.decoder.embed_tokens.weight"]
    positions = weights["model.decoder.embed_positions.weight"]
    x = embedding[ids] + positions[2 : 2 + len(ids)]  # whose first two rows are for padding
    for number in range(config["num_hidden_layers"]):
        layer = f"model.decoder.layers.{number}"
        h = norm(x, f"{layer}.self_attn_layer_norm")
        q, k, v = (
            linear(h, f"{layer}.self_attn.{name}_proj").reshape(len(ids), heads, -1)
            for name in "qkv"
        )
        x = x + linear(attention(q, k, v), f"{layer}.self_attn.out_proj")

        h = norm(x, f"{layer}.final_layer_norm")
        inner = activation(linear(h, f"{layer}.fc1"))
        on_mlp(number, h, weights[f"{layer}.fc1.weight"], inner)
        x = x + linear(inner, f"{layer}.fc2")
    return norm(x, "model.decoder.final_layer_norm") @ embedding.T


def forward(weights, config, ids, on_mlp=lambda layer, x, w, activated: None):
    """Logits [tokens, vocabulary] of one window.

    on_mlp gets of each layer x [tokens, columns], the input of its MLP; w [neurons, columns], the
    weight before the activation (of gate, of fc1); and what comes out of that, [tokens, neurons].
    """
    return {"llama": llama, "opt": opt}[config["model_type"]](weights, config, ids, on_mlp)
