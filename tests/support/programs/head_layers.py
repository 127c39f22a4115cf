"""Layers with heads of attention, or with experts, for split_cases.py."""

import numpy as np
from keras import layers, ops


class Masked(layers.Layer):
    """Attention with a mask of queries and keys, for all heads and examples."""

    def build(self, shape):
        self.heads = [layers.EinsumDense("abc,cde->abde", (None, 4, 4), name=name) for name in ("query", "key", "value")]
        for layer in self.heads:
            layer.build(shape)

    def call(self, x):
        attended = ops.dot_product_attention(*(layer(x) for layer in self.heads), mask=np.tril(np.ones((6, 6), bool)))
        return ops.reshape(attended, (-1, 96))


class Experts(layers.Layer):
    """Multiplies each word with the kernels of all experts; a router weighs the results."""

    def build(self, shape):
        self.router = layers.Dense(4, "softmax", name="router")
        self.router.build(shape)
        self.up = self.add_weight(name="experts_up", shape=(4, shape[-1], 8))
        self.down = self.add_weight(name="experts_down", shape=(4, 8, shape[-1]))

    def call(self, x):
        words = ops.reshape(x, (-1, x.shape[-1]))
        found = ops.matmul(ops.silu(ops.matmul(words, self.up)), self.down)
        return ops.reshape(ops.einsum("we,ewc->wc", self.router(words), found), ops.shape(x))


def grouped_heads_and_experts(words):
    """Returns what a block of a transformer says of texts of six words."""
    x = layers.Embedding(32, 16)(words)
    x = x + layers.GroupQueryAttention(4, 8, 4)(x, x, use_causal_mask=True)
    x = x + Experts()(layers.LayerNormalization()(x))
    return layers.Dense(10)(layers.GlobalAveragePooling1D()(x))
