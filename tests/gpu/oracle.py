"""The PLE stage in FP64 by numpy, from the formulas alone, and the checkpoint's hash constants.

It stands in for the Transformers library where that is not installed, and writes no state: a step's output follows from
the whole sequence so far.
"""
import dataclasses

import numpy as np

from pleiad_client import from_bf16, to_bf16

MASK = (1 << 64) - 1
GAMMA = 0x9E3779B97F4A7C15


@dataclasses.dataclass(frozen=True)
class Geometry:
    """Of one PLE layer; the released model's unless said. layer_id is one-based, dense its place among the PLE layers."""
    hidden: int = 2560
    streams: int = 4
    embed: int = 2560
    kernel: int = 4
    ngram: int = 3
    heads_per_ngram: int = 8
    base: int = 20_000_000
    divisor: int = 128
    seed: int = 1234
    vocab: int = 248320
    eos: int = 248044
    eps: float = 1e-6
    layer_id: int = 2
    dense: int = 0
    num_layers: int = 4

    @property
    def channels(self):
        return self.hidden * self.streams

    @property
    def heads(self):
        return (self.ngram - 1) * self.heads_per_ngram

    @property
    def head_dim(self):
        return self.embed // self.heads

    @property
    def state_len(self):
        return (self.kernel - 1) * self.ngram


def _splitmix(value):
    value = (value + GAMMA) & MASK
    value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ value >> 27) * 0x94D049BB133111EB) & MASK
    return value ^ value >> 31


def _prime(number):
    if number < 4:
        return number > 1
    return number % 2 != 0 and all(number % d for d in range(3, int(number**0.5) + 1, 2))


def hash_constants(geometry):
    """(multipliers [N], sizes [heads], offsets [heads], rows) of the layer; rows padded to the divisor."""
    bound = max(1, ((2**63 - 1) // geometry.vocab) // 2)
    multipliers = [2 * (_splitmix((geometry.seed + 10007 * geometry.dense + GAMMA * (i + 1)) & MASK) % bound) + 1
                   for i in range(geometry.ngram)]
    primes, number = [], geometry.base
    while len(primes) < (geometry.dense + 1) * geometry.heads:
        if _prime(number):
            primes.append(number)
        number += 1
    sizes = primes[geometry.dense * geometry.heads:]
    offsets = [sum(sizes[:i]) for i in range(len(sizes))]
    rows = -(-sum(sizes) // geometry.divisor) * geometry.divisor
    return (np.array(multipliers, np.int64), np.array(sizes, np.int64), np.array(offsets, np.int64), rows)


def row_ids(geometry, tokens):
    """Row ids [tokens, heads] of a whole sequence."""
    multipliers, sizes, offsets, _ = hash_constants(geometry)
    ids = np.zeros((len(tokens), geometry.heads), np.uint64)
    for t in range(len(tokens)):
        window, cut = [int(tokens[t])], False
        for back in range(1, geometry.ngram):
            cut = cut or t - back < 0 or tokens[t - back] == geometry.eos
            window.append(geometry.eos if cut else int(tokens[t - back]))
        mixed = window[0] * int(multipliers[0])
        for order in range(1, geometry.ngram):
            mixed ^= window[order] * int(multipliers[order])
            for head in range((order - 1) * geometry.heads_per_ngram, order * geometry.heads_per_ngram):
                ids[t, head] = mixed % int(sizes[head]) + int(offsets[head])
    return ids


class NumpyLayer:
    """The layer with weights of checkpoint.random_weights (BF16 as F32 values)."""

    def __init__(self, geometry, weights):
        self.geometry = geometry
        self.weights = weights

    def ids(self, tokens):
        return row_ids(self.geometry, tokens)

    def _norm(self, x, weight):
        g = self.geometry
        groups = x.reshape(len(x), g.streams, g.hidden)
        groups = groups / np.sqrt((groups**2).mean(-1, keepdims=True) + g.eps)
        return groups * (1.0 + weight.astype(np.float64).reshape(g.streams, g.hidden))

    def truth(self, tokens, highway, rounded=False):
        """What the stage adds to `highway` [tokens, C] of a whole sequence, FP64; `rounded`: with k and v rounded to BF16."""
        g, w = self.geometry, self.weights
        embeddings = w["rows"][self.ids(tokens)].reshape(len(tokens), g.embed).astype(np.float64)
        key = embeddings @ w["key_proj"].T.astype(np.float64)
        value = embeddings @ w["value_proj"].T.astype(np.float64)
        if rounded:
            key, value = (from_bf16(to_bf16(x)).reshape(x.shape).astype(np.float64) for x in (key, value))
        score = (self._norm(key, w["norm_key"]) * self._norm(highway.astype(np.float64), w["norm_query"])).sum(-1)
        score /= np.sqrt(g.hidden)
        gate = 1 / (1 + np.exp(-np.sign(score) * np.sqrt(np.maximum(np.abs(score), 1e-6))))
        update = (gate[:, :, None] * value[:, None, :]).reshape(len(tokens), g.channels)
        x = self._norm(update, w["norm_conv"]).reshape(len(tokens), g.channels)
        padded = np.concatenate([np.zeros((g.state_len, g.channels)), x])
        conv = sum(w["conv1d"][:, j].astype(np.float64) * padded[j * g.ngram:j * g.ngram + len(x)] for j in range(g.kernel))
        return update + conv / (1 + np.exp(-conv))

    def bf16(self, tokens, highway):
        return None  # the library's own BF16 path needs the library
