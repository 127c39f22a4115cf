"""What a trial tells of metrics is said once for each model."""

from types import SimpleNamespace

import keras

from tfdist.strategies.keras_hooks.checks.metric_trial import Judgement


def test_a_second_model_of_the_same_name_is_named_too(caplog):
    metrics = [keras.metrics.Sum(name="spread") for _ in range(2)]
    models = [SimpleNamespace(name="net", metrics=[each], metrics_variables=each.variables) for each in metrics]
    for model in (*models, models[0]):
        judgement = Judgement(model, 2)
        judgement.look_at(model.metrics_variables, [], [True], [2.0])
        judgement.apply(lambda kinds: kinds, warns=True)
    assert caplog.text.count("a metric of net (SimpleNamespace) differs from that in one process") == 2
