"""A Llama decoder's loss in numpy float64, written from the published formulas: values to hold the program against.

Touvron et al. 2023 (RMSNorm, SwiGLU), Su et al. 2021 (rotary embedding, halves turned together as in Hugging Face), Ainslie et al. 2023
(grouped queries: query head h reads key/value head h // (heads / kv_heads)).
"""
import numpy as np


def rms_norm(x, weight, epsilon):
    return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + epsilon) * weight


def rotate(x, theta):
    """x [tokens, heads, head_dim], positions from 0."""
    half = x.shape[2] // 2
    angles = np.arange(len(x))[:, None] * theta ** (-np.arange(half) / half)
    cosine, sine = np.cos(angles)[:, None], np.sin(angles)[:, None]
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cosine - b * sine, b * cosine + a * sine], -1)


def attention(q, k, v):
    """q [tokens, heads, d]; k, v [tokens, kv_heads, d]. Causal."""
    n, heads, d = q.shape
    k, v = (np.repeat(x, heads // x.shape[1], 1) for x in (k, v))
    scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(d)
    scores[:, np.triu(np.ones((n, n), bool), 1)] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("hij,jhd->ihd", weights / weights.sum(-1, keepdims=True), v).reshape(n, heads * d)


def token_losses(config, weights, tokens):
    """[tokens]: the loss of each token given those before it in its document; 0 for the first."""
    w = {name: np.asarray(value, np.float64) for name, value in weights.items()}
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    d = config.get("head_dim") or config["hidden_size"] // heads
    theta, epsilon = config.get("rope_theta", 10000.0), config["rms_norm_eps"]
    x, n = w["model.embed_tokens.weight"][tokens], len(tokens)
    for i in range(config["num_hidden_layers"]):
        p = f"model.layers.{i}."
        h = rms_norm(x, w[p + "input_layernorm.weight"], epsilon)
        q, k, v = ((h @ w[p + f"self_attn.{name}_proj.weight"].T).reshape(n, -1, d) for name in "qkv")
        assert q.shape[1] == heads and k.shape[1] == kv_heads
        x = x + attention(rotate(q, theta), rotate(k, theta), v) @ w[p + "self_attn.o_proj.weight"].T
        h = rms_norm(x, w[p + "post_attention_layernorm.weight"], epsilon)
        gate, up = h @ w[p + "mlp.gate_proj.weight"].T, h @ w[p + "mlp.up_proj.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ w[p + "mlp.down_proj.weight"].T
    logits = rms_norm(x, w["model.norm.weight"], epsilon) @ w.get("lm_head.weight", w["model.embed_tokens.weight"]).T
    top = logits.max(-1, keepdims=True)
    log_sums = (top + np.log(np.exp(logits - top).sum(-1, keepdims=True)))[:, 0]
    losses = np.zeros(n)
    losses[1:] = log_sums[:-1] - logits[np.arange(n - 1), tokens[1:]]
    return losses


def mean_loss(config, weights, documents, masks=None):
    """Over the targets of all documents; masks as in a token file, all ones where absent."""
    total, targets = 0.0, 0
    for i, tokens in enumerate(documents):
        mask = np.ones(len(tokens)) if masks is None else np.array(masks[i], float)
        mask[0] = 0
        total += (token_losses(config, weights, np.asarray(tokens)) * mask).sum()
        targets += mask.sum()
    return total / targets
