"""Compressed changes: how far from the change, how many bytes, what is never lost, and the same bits wherever they are decoded."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as of_numpy

pytestmark = pytest.mark.cluster  # TensorFlow takes seconds to import; no process is started.

KINDS = ("bf16", "int8", "int4")
LIMITS = {"int8": 127, "int4": 7}
BLOCK = 256

vectors = of_numpy.arrays(
    np.float32,
    st.integers(0, 600) | st.sampled_from([1, 255, 256, 257, 512]),
    elements=st.floats(-(2.0**127), 2.0**127, width=32, allow_nan=False),
    fill=st.nothing() | st.just(np.float32(0)),
)


@pytest.fixture(scope="module")
def coding():
    from tfdist.strategies.hogwild import compression

    return compression


def blocks(values):
    return [values[first : first + BLOCK] for first in range(0, len(values), BLOCK)]


def scale_by_hand(block, limit):
    """In float64: the largest magnitude / limit, up to 16 significant bits; zeros below 2^-125."""
    exact = float(np.max(np.abs(block.astype(np.float32))) / np.float32(limit))
    if exact < 2.0**-125:
        return 0.0
    mantissa, exponent = np.frexp(exact)
    return float(np.ldexp(np.ceil(np.ldexp(mantissa, 16)), exponent - 16))


@pytest.mark.parametrize("kind", ["int8", "int4"])
@settings(max_examples=60, deadline=None)
@given(values=vectors)
def test_every_value_comes_back_within_half_a_scale_and_zero_as_zero(coding, kind, values):
    parts = coding.encode(values, kind)
    got = coding.decode(parts, len(values), kind).numpy()
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
def test_bf16_keeps_eight_significant_bits(coding, values):
    got = coding.decode(coding.encode(values, "bf16"), len(values), "bf16").numpy()
    normal = np.abs(values) >= 2.0**-126
    assert np.all(np.abs(got - values)[normal] <= np.abs(values)[normal].astype(np.float64) * 2.0**-8)
    assert np.all(got[values == 0] == 0)


@pytest.mark.parametrize("kind", [None, *KINDS])
@pytest.mark.parametrize("n", [0, 1, 2, 255, 256, 257, 511, 1000])
def test_it_sends_exactly_as_many_bytes_as_it_says(coding, kind, n):
    values = np.random.default_rng(n).normal(size=n).astype(np.float32)
    parts = coding.encode(values, kind)
    sent = sum(part.shape.num_elements() * part.dtype.size for part in parts)
    by_hand = {None: 4 * n, "bf16": 2 * n, "int8": n + 4 * -(-n // 256), "int4": -(-n // 2) + 4 * -(-n // 256)}
    assert sent == coding.size(n, kind) == by_hand[kind]
    got = coding.decode(parts, n, kind).numpy()
    assert got.shape == (n,)
    np.testing.assert_allclose(got, values, atol={None: 0, "bf16": 0.02, "int8": 0.02, "int4": 0.4}[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_a_block_with_nan_or_infinity_never_comes_back_as_a_number_and_leaves_the_others_alone(coding, kind):
    for bad in (np.nan, np.inf, -np.inf):
        values = np.full(3 * BLOCK, 0.5, np.float32)
        values[BLOCK + 7] = bad
        got = coding.decode(coding.encode(values, kind), len(values), kind).numpy()
        assert not np.isfinite(got[BLOCK + 7])
        others = [*got[:BLOCK], *got[2 * BLOCK :]]
        np.testing.assert_allclose(others, 0.5, rtol=1e-3)
        if kind != "bf16":
            assert np.all(np.isnan(got[BLOCK : 2 * BLOCK]))


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_the_largest_magnitudes_overflow_neither_silently_nor_early(coding, kind):
    edge = np.float32(2.0**127)
    got = coding.decode(coding.encode(np.array([edge, -edge, 0], np.float32), kind), 3, kind).numpy()
    np.testing.assert_allclose(got, [edge, -edge, 0], rtol=1e-4)
    beyond = np.array([np.nextafter(edge, np.float32(np.inf)), 1], np.float32)
    assert np.all(np.isnan(coding.decode(coding.encode(beyond, kind), 2, kind).numpy()))


@pytest.mark.parametrize("kind", KINDS)
def test_decoding_gives_the_same_bits_eagerly_in_a_graph_and_compiled_and_so_error_feedback_loses_nothing(coding, kind):
    import tensorflow as tf

    n = 1000
    generator = np.random.default_rng(0)
    values = generator.normal(size=n) * 10.0 ** generator.integers(-44, 30, size=n)
    values[300:600] = generator.normal(size=300)
    values = values.astype(np.float32)

    def in_a_group(values):
        """All in one graph, where a compiler may leave out a cast there and back, or contract a product and a difference."""
        parts = coding.encode(values, kind)
        return parts, coding.decode(parts, n, kind), values - coding.decode(parts, n, kind)

    for compiled in (False, True):
        parts, decoded, left = tf.function(in_a_group, jit_compile=compiled)(tf.constant(values))
        at_the_centre = coding.decode(parts, n, kind).numpy()
        np.testing.assert_array_equal(decoded.numpy().view(np.int32), at_the_centre.view(np.int32))
        sensible = np.abs(values) > 1e-30  # A difference of denormal numbers may be flushed.
        np.testing.assert_array_equal(left.numpy()[sensible], (values - at_the_centre)[sensible])
        assert np.any(left.numpy() != 0)


@pytest.mark.parametrize("kind", KINDS)
def test_with_error_feedback_the_sum_of_what_was_sent_follows_the_sum_of_the_changes(coding, kind):
    generator = np.random.default_rng(1)
    left, sent, wanted = np.zeros(300, np.float32), np.zeros(300, np.float64), np.zeros(300, np.float64)
    for _ in range(50):
        change = generator.normal(size=300).astype(np.float32) * 0.01
        whole = change + left
        got = coding.decode(coding.encode(whole, kind), 300, kind).numpy()
        left = whole - got
        sent += got
        wanted += change
    # All that is missing is what the last exchange left out.
    np.testing.assert_allclose(sent + left, wanted, atol=1e-6)
    assert np.max(np.abs(left)) < {"bf16": 1e-3, "int8": 1e-3, "int4": 1e-2}[kind]


def test_what_cannot_be_encoded_is_refused(coding):
    import tensorflow as tf

    with pytest.raises(ValueError, match="'int2' is no kind of compression"):
        coding.encode(np.zeros(3, np.float32), "int2")
    with pytest.raises(ValueError, match="float64"):
        coding.encode(np.zeros(3), "int8")
    with pytest.raises(ValueError, match="known length"):
        tf.function(lambda x: coding.encode(x, "int8")).get_concrete_function(tf.TensorSpec([None], tf.float32))
