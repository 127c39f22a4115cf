"""Compressors: rounding errors, bytes, values that cannot be sent, and equal bits wherever they are decoded."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as of_numpy

from tfdist import synchronization
from tfdist.strategies.hogwild.synchronization.compression import COMPRESSORS

KINDS = [kind for kind in synchronization.COMPRESSIONS if kind != "float32"]
LIMITS = {"int8": 127, "int4": 7}
BLOCK = 256

vectors = of_numpy.arrays(
    np.float32,
    st.integers(0, 600) | st.sampled_from([1, 255, 256, 257, 512]),
    elements=st.floats(-(2.0**127), 2.0**127, width=32, allow_nan=False),
    fill=st.nothing() | st.just(np.float32(0)),
)


def blocks(values):
    return [values[first : first + BLOCK] for first in range(0, len(values), BLOCK)]


def scale_by_hand(block, limit):
    """Returns the largest magnitude / limit, rounded up to 16 significant bits, or 0 below 2^-125; in float64."""
    exact = float(np.max(np.abs(block.astype(np.float32))) / np.float32(limit))
    if exact < 2.0**-125:
        return 0.0
    mantissa, exponent = np.frexp(exact)
    return float(np.ldexp(np.ceil(np.ldexp(mantissa, 16)), exponent - 16))


def test_every_kind_has_a_compressor():
    assert set(COMPRESSORS) == {None, *synchronization.COMPRESSIONS}


@pytest.mark.parametrize("kind", ["int8", "int4"])
@settings(max_examples=60, deadline=None)
@given(values=vectors)
def test_the_error_is_at_most_half_a_scale_and_zero_stays_zero(kind, values):
    parts = COMPRESSORS[kind].encode(values)
    got = COMPRESSORS[kind].decode(parts, len(values)).numpy()
    assert got.dtype == np.float32 and got.shape == values.shape
    assert np.all(got[values == 0] == 0)
    scales = [scale_by_hand(block, LIMITS[kind]) for block in blocks(values)]
    assert parts[1].numpy().tolist() == scales
    for block, back, scale in zip(blocks(values), blocks(got), scales, strict=True):
        if scale:
            error = np.abs(block.astype(np.float64) - back.astype(np.float64))
            assert np.max(error) <= scale * (0.5 + 2.0**-16)
            whole = back.astype(np.float64) / scale
            assert np.all(whole == np.round(whole)) and np.max(np.abs(whole)) <= LIMITS[kind]
        else:
            assert np.all(back == 0) and np.max(np.abs(block)) <= LIMITS[kind] * 2.0**-125


@settings(max_examples=50, deadline=None)
@given(values=vectors)
def test_bf16_keeps_eight_significant_bits(values):
    got = COMPRESSORS["bf16"].decode(COMPRESSORS["bf16"].encode(values), len(values)).numpy()
    normal = np.abs(values) >= 2.0**-126
    assert np.all(np.abs(got - values)[normal] <= np.abs(values)[normal].astype(np.float64) * 2.0**-8)
    assert np.all(got[values == 0] == 0)


@pytest.mark.parametrize("kind", [None, *KINDS])
@pytest.mark.parametrize("n", [0, 1, 2, 255, 256, 257, 511, 1000])
def test_the_size_is_the_number_of_bytes_sent(kind, n):
    values = np.random.default_rng(n).normal(size=n).astype(np.float32)
    parts = COMPRESSORS[kind].encode(values)
    sent = sum(part.shape.num_elements() * part.dtype.size for part in parts)
    by_hand = {None: 4 * n, "bf16": 2 * n, "int8": n + 4 * -(-n // 256), "int4": -(-n // 2) + 4 * -(-n // 256)}
    assert sent == COMPRESSORS[kind].size(n) == by_hand[kind]
    got = COMPRESSORS[kind].decode(parts, n).numpy()
    assert got.shape == (n,)
    np.testing.assert_allclose(got, values, atol={None: 0, "bf16": 0.02, "int8": 0.02, "int4": 0.4}[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_a_block_with_nan_or_infinity_is_not_decoded_as_numbers_and_other_blocks_are(kind):
    for bad in (np.nan, np.inf, -np.inf):
        values = np.full(3 * BLOCK, 0.5, np.float32)
        values[BLOCK + 7] = bad
        got = COMPRESSORS[kind].decode(COMPRESSORS[kind].encode(values), len(values)).numpy()
        assert not np.isfinite(got[BLOCK + 7])
        others = [*got[:BLOCK], *got[2 * BLOCK :]]
        np.testing.assert_allclose(others, 0.5, rtol=1e-3)
        if kind != "bf16":
            assert np.all(np.isnan(got[BLOCK : 2 * BLOCK]))


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_magnitudes_are_sent_up_to_the_limit_and_become_nan_above(kind):
    edge = np.float32(2.0**127)
    got = COMPRESSORS[kind].decode(COMPRESSORS[kind].encode(np.array([edge, -edge, 0], np.float32)), 3).numpy()
    np.testing.assert_allclose(got, [edge, -edge, 0], rtol=1e-4)
    beyond = np.array([np.nextafter(edge, np.float32(np.inf)), 1], np.float32)
    assert np.all(np.isnan(COMPRESSORS[kind].decode(COMPRESSORS[kind].encode(beyond), 2).numpy()))


@pytest.mark.parametrize("kind", KINDS)
def test_decode_returns_the_same_bits_eagerly_in_a_graph_and_compiled_so_error_feedback_loses_nothing(kind):
    n = 1000
    generator = np.random.default_rng(0)
    values = generator.normal(size=n) * 10.0 ** generator.integers(-44, 30, size=n)
    values[300:600] = generator.normal(size=300)
    values = values.astype(np.float32)

    def on_worker(values):
        """One graph, in which a compiler may remove a cast there and back, or fuse a product and a difference."""
        parts = COMPRESSORS[kind].encode(values)
        return parts, COMPRESSORS[kind].decode(parts, n), values - COMPRESSORS[kind].decode(parts, n)

    for compiled in (False, True):
        parts, decoded, left = tf.function(on_worker, jit_compile=compiled)(tf.constant(values))
        on_ps = COMPRESSORS[kind].decode(parts, n).numpy()
        np.testing.assert_array_equal(decoded.numpy().view(np.int32), on_ps.view(np.int32))
        sensible = np.abs(values) > 1e-30  # A difference of denormal numbers may be flushed.
        np.testing.assert_array_equal(left.numpy()[sensible], (values - on_ps)[sensible])
        assert np.any(left.numpy() != 0)


@pytest.mark.parametrize("kind", KINDS)
def test_with_error_feedback_the_sum_of_all_messages_follows_the_sum_of_all_progress(kind):
    generator = np.random.default_rng(1)
    left, sent, wanted = np.zeros(300, np.float32), np.zeros(300, np.float64), np.zeros(300, np.float64)
    for _ in range(50):
        change = generator.normal(size=300).astype(np.float32) * 0.01
        whole = change + left
        got = COMPRESSORS[kind].decode(COMPRESSORS[kind].encode(whole), 300).numpy()
        left = whole - got
        sent += got
        wanted += change
    # Only the last rounding error is missing.
    np.testing.assert_allclose(sent + left, wanted, atol=1e-6)
    assert np.max(np.abs(left)) < {"bf16": 1e-3, "int8": 1e-3, "int4": 1e-2}[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_other_dtypes_and_unknown_lengths_are_refused(kind):
    with pytest.raises(ValueError, match="float64"):
        COMPRESSORS[kind].encode(np.zeros(3))
    with pytest.raises(ValueError, match="known length"):
        tf.function(COMPRESSORS[kind].encode).get_concrete_function(tf.TensorSpec([None], tf.float32))
