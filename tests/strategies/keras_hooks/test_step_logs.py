"""Logs of a step are replaced by the results of metrics only if the step computes them from these metrics."""

import keras
import pytest
import tensorflow as tf

from tfdist.strategies.keras_hooks.step_logs import means_over_examples, own_names, with_metrics


@pytest.fixture
def model():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd")
    model.mine = keras.metrics.Mean(name="mine")
    return model


def updated(model, x):
    loss = tf.reduce_mean(model(x))
    model.mine.update_state(loss)
    return loss


STEPS = {  # What a step returns -> the names of logs that are its own, though metrics have them.
    "a loss under the name of an unused metric": (lambda m, loss: {"loss": loss, "kl": loss}, {"loss"}),
    "a loss under the name of a metric that it updates": (lambda m, loss: {"mine": 2.0 * loss}, {"mine"}),
    "a number": (lambda m, loss: {"loss": 0.5}, {"loss"}),
    "results of metrics": (lambda m, loss: m.get_metrics_result(), set()),
    "nested results": (lambda m, loss: {"all": {"mine": m.mine.result()}, "loss": loss}, {"loss"}),
    "results in a branch": (lambda m, loss: {"mine": tf.cond(loss > 1, m.mine.result, lambda: 0.0)}, set()),
    "a number alone": (lambda m, loss: loss, set()),
}


@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize("name", STEPS)
def test_logs_that_are_not_computed_from_their_metric_are_the_steps_own(model, name, inner):
    logs_of, expected = STEPS[name]
    step = lambda x: logs_of(model, updated(model, x))  # noqa: E731
    if inner and "that it updates" not in name:  # Of a function only the variables that it uses are known.
        step = tf.function(step)
    found = []
    tf.function(lambda x: found.append(own_names(model, step(x)))).get_concrete_function(tf.TensorSpec([4, 2]))
    assert found == [expected]


def test_in_eager_code_the_metrics_that_a_step_assigns_are_known(model):
    loss = updated(model, tf.ones([4, 2]))
    assert own_names(model, {"loss": loss, "mine": loss}, {id(model.mine.total)}) == {"loss"}


def test_results_replace_all_other_logs_of_their_names():
    logs = {"loss": 1.0, "all": {"mine": 2.0}, "kl": 3.0}
    assert with_metrics(logs, {"loss": 0.0, "mine": 5.0, "unused": 6.0}, {"loss"}) == {"loss": 1.0, "mine": 5.0, "kl": 3.0}
    assert with_metrics(4.0, {"loss": 0.0}) == 4.0


def test_results_of_a_metric_with_several_replace_the_logs_of_a_step_too():
    logs = {"several": {"n": 1.0, "sum": 2.0}, "own": 3.0}
    assert with_metrics(logs, {"several": {"n": 4.0, "sum": 5.0}}) == {"n": 4.0, "sum": 5.0, "own": 3.0}
    assert with_metrics(logs, {"several": {"n": 4.0, "sum": 5.0}}, {"n"}) == {"n": 1.0, "sum": 5.0, "own": 3.0}
    inside = {
        "compile_metrics": {"several": {"n": 1.0, "sum": 2.0}}
    }  # Of a step that returns the result of each of its metrics.
    assert with_metrics(inside, {"several": {"n": 4.0, "sum": 5.0}}) == {"n": 4.0, "sum": 5.0}


def test_a_log_under_a_name_that_a_metric_with_several_results_has_is_the_steps_own():
    class Several(keras.metrics.Mean):
        def update_state(self, y_true, y_pred, sample_weight=None):
            return super().update_state(y_pred, sample_weight)

        def result(self):
            return {"n": self.count, "mean": self.total}

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=[Several(name="several")])
    model.evaluate(tf.ones([4, 2]), tf.ones([4, 1]), verbose=0)
    found = []
    tf.function(lambda: found.append(own_names(model, {"n": tf.constant(1.0)})))()
    assert found == [{"n"}]


@pytest.mark.parametrize("run", [tf.function, lambda function: function], ids=["traced", "eager"])
def test_logs_with_a_number_for_each_example_become_their_mean_and_others_stay(run):
    def step(x):
        logs = {"loss": tf.reduce_sum(x), "inner": {"each": x[:, 0], "is_above": x > 0}, "classes": tf.reduce_sum(x, axis=0)}
        return means_over_examples(logs, 3)

    logs = run(step)(tf.constant([[1.0, 2.0], [2.0, 3.0], [6.0, 4.0]]))
    assert tf.nest.map_structure(lambda v: v.numpy().tolist(), logs) == {
        "loss": 18.0,
        "inner": {"each": 3.0, "is_above": [1.0, 1.0]},
        "classes": [9.0, 9.0],
    }
