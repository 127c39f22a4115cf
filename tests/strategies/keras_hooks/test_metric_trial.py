"""What a trial tells of metrics is said once for each model."""

import keras

from tfdist.strategies.keras_hooks.checks.metric_trial import Judgement


def test_a_second_model_of_the_same_name_is_named_too(caplog):
    models = [keras.Model(name="net") for _ in range(2)]
    for model in models:
        model.spread = keras.metrics.Sum(name="spread")
    for model in (*models, models[0]):
        judgement = Judgement(model, 2)
        judgement.look_at(model.metrics_variables, [], [True], [2.0])
        judgement.apply(lambda kinds: kinds, warns=True)
    assert caplog.text.count("a metric of net (Model) differs from that in one process") == 2
