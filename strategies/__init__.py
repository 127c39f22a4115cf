"""The strategies that train, and the table of them. Importing this file does not import TensorFlow.

Every strategy has a module with `create(cluster, start_timeout)`, which runs on the tasks that run the user's program. The
rooms: `private_api` (private names of TensorFlow and Keras), `inputs` (batches), `keras_hooks` (where Keras' loop and a
strategy meet), `model_parallel` (variables sharded over the devices of a replica), `data_parallel` (mirrored,
multi_worker_mirrored), `coordinator`, `parameter_server` and `hogwild` (workers that a chief coordinates), `checkpoint`,
`evaluator`, `runtime`. Imports point from `parameter_server` and `hogwild` to `coordinator`, from `data_parallel` to
`model_parallel`, and from all of these to `keras_hooks`, `inputs` and `private_api`. This package imports `tfdist` and nothing
of `launch`. Start with `create` below, then with the docstring of a room.
"""

import importlib
import logging
import os
import re
from types import ModuleType
from typing import TYPE_CHECKING

from tfdist.choice import SERVED, Choice
from tfdist.cluster import Cluster
from tfdist.errors import ClusterError
from tfdist.strategies import keras_backend
from tfdist.strategies.runtime.tensorflow_logging import quiet_tensorflow

if TYPE_CHECKING:
    import tensorflow as tf

MODULES = {
    "default": "tfdist.strategies.default",
    "mirrored": "tfdist.strategies.data_parallel.mirrored",
    "multi_worker_mirrored": "tfdist.strategies.data_parallel.multi_worker_mirrored",
    "parameter_server": "tfdist.strategies.parameter_server.strategy",
    "hogwild": "tfdist.strategies.hogwild.strategy",
}
"""Strategy name -> module."""

_TPU = re.compile(r"tpu|^ct[0-9]", re.IGNORECASE)
"""In machine types with TPUs: CloudML's `cloud_tpu`, Vertex AI's `cloud-tpu` and `ct5lp-hightpu-4t`, accelerators `TPU_V2`."""


def serving_jobs(strategy: str) -> tuple[str, ...]:
    """Returns the jobs whose tasks run a TensorFlow server under `strategy`; nothing if every task runs the user's program."""
    return ("worker", "ps") if strategy in SERVED else ()


def replaceable_jobs(strategy: str) -> tuple[str, ...]:
    """Returns the jobs whose tasks may die and start again under `strategy` without a restart of the whole job."""
    return {"parameter_server": ("worker",), "hogwild": ("worker", "ps")}.get(strategy, ())


def fixed_workers(cluster: Cluster, choice: Choice) -> str | None:
    """Returns why workers cannot join or leave a training of `cluster`, as a clause; None if they can."""
    if not replaceable_jobs(choice.strategy):
        return f"under {choice.strategy} all tasks make each step together; workers join and leave under {' and '.join(SERVED)}"
    if not cluster.job("ps") and not cluster.partial:
        return "in a cluster without ps the workers hold the global parameters, each a part of them"
    if any(len(tasks) > 1 for tasks in cluster.group_tasks):
        return "a worker group of this cluster has several tasks, which make each step together"
    return None


def refusal(cluster: Cluster, choice: Choice) -> str | None:
    """Returns why `cluster` cannot train under `choice`, as a sentence; None if it can."""
    if choice.strategy == "multi_worker_mirrored" and cluster.job("ps"):
        return (
            "multi_worker_mirrored keeps the parameters on the tasks that train and has nothing for ps tasks to do, but this "
            f"cluster has some ({cluster.describe()}); describe it without ps, or choose parameter_server"
        )
    if cluster.partial and (len(cluster.training_tasks) < 2 or (choice.strategy in SERVED and not cluster.job("chief"))):
        return (
            f"this is the view of one task, with {cluster.describe()}, and does not name the others that it trains with; if it "
            "is from a TFJob, leave out its enableDynamicWorker"
        )
    if cluster.min_workers is not None and (fixed := fixed_workers(cluster, choice)):
        return f"{fixed}, so none can join later (min_workers, --max_workers)"
    return None


def tpu_note(cluster: Cluster) -> str | None:
    """Returns a warning, as a sentence, if the description asks for a Cloud TPU, which no strategy here can use; else None."""
    asking = [task.name for task in cluster.tasks if _TPU.search(task.machine_type or "")]
    return f"{', '.join(asking)} asks for a Cloud TPU, which tfdist cannot use; it trains on the CPU" if asking else None


def create(cluster: Cluster, choice: Choice, start_timeout: float) -> "tf.distribute.Strategy":
    """Creates the strategy on a task that runs the user's program: the chief, the only task, or every data-parallel task.

    Args:
        cluster: the prepared and addressed cluster.
        choice: the result of `tfdist.choice.choose`.
        start_timeout: seconds to wait for the other tasks.
    """
    from tfdist.strategies import own_devices, versions
    from tfdist.strategies.checkpoint import atomic_saving, environment, job_backup
    from tfdist.strategies.inputs import cache_files
    from tfdist.strategies.model_parallel import refusal as sharding_refusal
    from tfdist.strategies.runtime import interrupts, other_strategies, proxies, reachability, run_summary, save_signal

    proxies.leave_out(cluster)
    _prepare_process()
    own_devices.take_for_training(cluster, choice.strategy)
    run_summary.install()
    if os.environ.get(environment.FOLDER):
        save_signal.outlive()
    module: ModuleType = importlib.import_module(MODULES[choice.strategy])
    keras_backend.check(choice.strategy)
    for warning in versions.newer_than_tested():
        logging.getLogger("tfdist").warning("%s", warning)
    is_connected = choice.strategy in SERVED or choice.strategy == "multi_worker_mirrored"
    if is_connected:
        other_strategies.refuse_earlier()
    strategy: tf.distribute.Strategy = module.create(cluster, start_timeout)
    first = cluster.training_tasks[0]
    is_other = choice.strategy == "multi_worker_mirrored" and cluster.task not in (None, (first.job, first.index))
    cache_files.install("-".join(map(str, cluster.task)) if cluster.task and is_other else "")
    if is_connected:
        reachability.limit(cluster, warns=cluster.task in (None, ("chief", 0), (first.job, first.index)))
        other_strategies.refuse()
    atomic_saving.install(strategy)
    job_backup.install(strategy)
    sharding_refusal.install(strategy)  # These two are last, so that they come before the hooks of the strategy.
    interrupts.install()
    run_summary.note_end()
    return strategy


def _prepare_process() -> None:
    """Prepares a process that runs the user's program, whatever it does with it."""
    from tfdist.strategies.inputs import iterator_release
    from tfdist.strategies.runtime import downloads, generated_code, interrupts

    quiet_tensorflow()
    interrupts.keep_out_of_tensorflow()
    generated_code.install()
    downloads.install()
    iterator_release.install()


def create_evaluator(cluster: Cluster, start_timeout: float) -> "tf.distribute.Strategy":
    """Creates the strategy of an evaluator task of `cluster`, under which `fit` evaluates."""
    from tfdist.strategies import own_devices
    from tfdist.strategies.checkpoint import atomic_saving
    from tfdist.strategies.evaluator.checkpoint_evaluator import leave_files_to_chief
    from tfdist.strategies.evaluator.strategy import create as create_evaluator_strategy
    from tfdist.strategies.inputs import cache_files

    _prepare_process()
    assert cluster.task is not None
    cache_files.install("-".join(map(str, cluster.task)))
    own_devices.take_for_evaluation(cluster)
    keras_backend.check("evaluator")
    strategy = create_evaluator_strategy(cluster, cluster.find(*cluster.task), start_timeout)
    atomic_saving.install(strategy)
    leave_files_to_chief()
    return strategy


def write_for_evaluator(strategy: "tf.distribute.Strategy", cluster: Cluster) -> None:
    """Makes the chief's `fit` write checkpoints for the evaluator, if there is one and a folder that both can reach."""
    from tfdist.strategies.evaluator.folder import EvaluationFolder

    expected = bool(cluster.job("evaluator"))
    try:
        folder = EvaluationFolder.of(cluster)
    except ClusterError as error:
        if expected:
            logging.getLogger("tfdist").warning("the training goes on without its evaluator: %s", error)
        return
    from tfdist.strategies.evaluator import chief_callback

    chief_callback.install(strategy, folder, expected)
