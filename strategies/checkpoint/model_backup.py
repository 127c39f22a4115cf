"""The backup of one model: what each of its calls of `fit` saves, and takes from an earlier process. See job_backup.py."""

import copy
import dataclasses
import itertools
import logging
from typing import Any

from tfdist.strategies.checkpoint import callback_states, data_position, model_states, random_numbers
from tfdist.strategies.checkpoint.atomic_path import is_chief
from tfdist.strategies.checkpoint.backup_file import KEEP, Arrays, BackupFile, Progress, progress_in
from tfdist.strategies.checkpoint.batches import Batches
from tfdist.strategies.checkpoint.data_position import DataPosition, Resumption
from tfdist.strategies.checkpoint.fit_start import FitStart
from tfdist.strategies.keras_hooks.interface import hooks_of

_log = logging.getLogger("tfdist")


class ModelBackup:
    """The backup of one model.

    Args:
        file: its file.
        batches: after so many batches it saves within an epoch; None for never.
        skipped: how many calls of an earlier process the program does not make again.
        is_continued: whether the first call is the one that the file has after these; else it begins anew.

    Attributes:
        file: as the argument.
    """

    def __init__(self, file: BackupFile, batches: int | None, skipped: int = 0, is_continued: bool = True) -> None:
        self.file = file
        self._batches = batches
        self._skipped = skipped
        self._is_continued = is_continued
        self._saved_earlier: Progress | None = None  # What an earlier process has saved, until this one is as far.
        self._is_read = False
        self._has_warned = False  # Of weights that are not kept.
        self._progress = Progress(0, {})
        self._callbacks: list[Any] = []
        self._saved_batches = 0  # Batches of the epoch that the latest backup holds.
        self._restored: tuple[Progress, Arrays] | None = None
        self._rates: list[tuple[Any, Any]] = []  # The learning rates of an epoch that continues in its middle.
        self._end_state: Any = None  # The state of random numbers at the end of a call that is passed over.
        self._end_path: str | None = None  # The file with the weights at the end of that call.
        self._last_states: dict[str, Any] = {}  # Of the callbacks, at the end of that call, if the backup has no later one.
        self.has_restored_metrics = False

    # The beginning and the end of a call of `fit`.

    def begin(self, start: FitStart) -> bool:
        """Prepares for the next call of `fit`, before Keras begins it.

        Args:
            start: how it begins.

        Returns:
            Whether it continues, or is passed over, instead of beginning anew.
        """
        if not self._is_read:
            self._read()
        before, call = self._progress, {"epochs": start.epochs, "initial_epoch": start.initial_epoch}
        raised = [None] * (before.fit - len(before.finished_fits))
        self._progress = Progress(
            before.fit + 1, call, finished_fits=[*before.finished_fits, *raised], starts=[*before.starts, start]
        )
        self._saved_batches = 0
        saved = self._saved_earlier
        if saved is None:
            return False
        number = self._progress.fit
        earlier = saved.call
        if number < saved.fit:
            earlier = {name: getattr(each, name) for each in saved.starts[number - 1 : number] for name in call} or call
        if earlier != call:
            _log.warning(
                "the backup %s is of a fit with %s, and this one has %s: it begins anew",
                self.file.path,
                *(", ".join(f"{name}={value}" for name, value in each.items()) for each in (earlier, call)),
            )
            self._saved_earlier = None
            return False
        return self._is_done or saved.fit == number

    def continue_csv(self, callbacks: list[Any]) -> None:
        """Makes the files of each CSVLogger end where a call of `fit` continues. A call that is passed over writes no row."""
        if self._saved_earlier is not None and not self._is_done:
            callback_states.continue_csv(callbacks, self._saved_earlier.epoch, self._saved_earlier.callbacks)

    def begin_csv(self, callbacks: list[Any]) -> None:
        """Makes the files of each CSVLogger end where a call of `fit` begins of which an earlier process has saved nothing."""
        states, self._last_states = self._last_states, {}
        callback_states.begin_csv(callbacks, states)

    def _read(self) -> None:
        saved, self._is_read = self.file.read(), True
        if saved is None or not self._is_continued:
            self.file.forget()
            return
        self._saved_earlier = saved
        self._progress.fit = self._skipped
        self._progress.finished_fits = saved.finished_fits[: self._skipped]
        self._progress.starts = saved.starts[: self._skipped]

    @property
    def _is_done(self) -> bool:
        """Whether an earlier process has finished this call of `fit`."""
        return self._saved_earlier is not None and self._saved_earlier.has_finished(self._progress.fit)

    def restore(self, model: Any, callbacks: list[Any]) -> None:
        """Takes what an earlier process has saved, when Keras has built the model and before the first epoch."""
        self._callbacks = callbacks
        if (saved := self._saved_earlier) is None:
            return
        if self._is_done:
            self._pass_over(model, saved)
            return
        if saved.fit > self._progress.fit:
            _log.warning("fit %d of %s raised an exception before the restart: it runs again", self._progress.fit, model.name)
            return
        batches = f" and {saved.batch} batches" if saved.batch else ""
        done = f"{saved.epoch} epochs{batches}"
        _log.warning("fit %d of %s continues after %s, from %s", saved.fit, model.name, done, self.file.path)
        _build(model)
        self._restored = saved, self._load(model)
        self.file.forget()
        self._saved_earlier = None
        model._initial_epoch = saved.epoch
        self._progress.finished_fits = saved.finished_fits
        epochs = saved.epoch - self._progress.call["initial_epoch"]
        batch, per_epoch = saved.batch, saved.batches_per_epoch
        before, now = Batches(saved.batch_size, saved.batch_count), Batches.of(_position().iterator)
        if before.differ(now):
            per_epoch = None
            batch, sentence = before.converted(saved.batch, now)
            if saved.batch:
                _log.warning("fit %d of %s: %s", saved.fit, model.name, sentence)
        self._saved_batches = batch
        _position().resume(Resumption(epochs, batch, per_epoch, keeps_random_state=saved.random_state is not None))

    def _pass_over(self, model: Any, found: Progress) -> None:
        """Leaves no epoch to a call that an earlier process has finished, and gives the model what it had at the end.

        Callbacks of the user save and evaluate at the end of training, and the program does so between its calls.
        """
        number = self._progress.fit
        if number == self._skipped + 1 or not found.has_finished(number - 1):  # A program may call `fit` in a loop.
            last = next(each for each in itertools.count(number) if not found.has_finished(each + 1))
            were = f"fit {number} of {model.name} was" if last == number else f"fits {number} to {last} of {model.name} were"
            _log.warning("%s finished before the restart", were)
        model._initial_epoch = self._progress.call["epochs"]
        _position().pass_over(len(found.finished_fits[number - 1][0]))
        _build(model)
        arrays: Arrays | None = None
        if (path := self.file.find_end(number, found)) is not None:
            arrays = self._load(model, path)
            self._end_path, self._end_state = path, progress_in(path).random_state
        else:
            if not self._has_warned:
                _log.warning(
                    "the backup has no weights of %s at the end of fit %d, only of the last %d calls: what the program saves "
                    "and evaluates after such a call is of fit %d",
                    *(model.name, number, KEEP, found.fit),
                )
            self._has_warned = True
            self.file.load(model, is_exact=False)
        states = found.finished_fits[number - 1][2]
        callback_states.restore(self._callbacks, states, {} if arrays is None else arrays.callbacks)

    def _load(self, model: Any, path: str | None = None) -> Arrays:
        arrays = self.file.load(model, path)
        model_states.set_seeds(model, arrays.seeds)
        model_states.set_own_variables(model, arrays.own)
        return arrays

    def last_logs(self, model: Any) -> dict[str, Any]:
        """Returns the logs of the last epoch of a call that is passed over, whose `History` the model gets; else nothing."""
        if self._saved_earlier is None or not self._is_done:
            return {}
        # A copy: programs add the values of other calls to those of the first one.
        epochs, history, _ = copy.deepcopy(self._saved_earlier.finished_fits[self._progress.fit - 1])
        if getattr(model, "history", None) is not None:  # Else the program has given `fit` a `CallbackList` without one.
            model.history.epoch, model.history.history = epochs, history
        return {name: values[-1] for name, values in history.items() if epochs and len(values) == len(epochs)}

    def begin_epoch(self, model: Any, callbacks: list[Any]) -> None:
        """Sets what callbacks and metrics had, after Keras has reset them."""
        self._callbacks = callbacks
        self.has_restored_metrics = False
        restored, self._restored = self._restored, None
        state = None if restored is None else restored[0].random_state
        if state is not None:
            _position().begin_epoch(state)  # Now: callbacks may draw, or set a seed, before the data of the epoch do.
        _position().random_state = state or random_numbers.state()
        if restored is None:
            return
        found, arrays = restored
        callback_states.restore(callbacks, found.callbacks, arrays.callbacks)
        if found.batch:
            self.has_restored_metrics = model_states.set_metrics(model, arrays.metrics)
            self._rates = model_states.learning_rates(model)

    def continue_epoch(self) -> None:
        """Sets the learning rates of an epoch that continues in its middle, after callbacks have begun it once more.

        A LearningRateScheduler may compute the rate from that of the epoch before, which the epoch has not any more.
        """
        rates, self._rates = self._rates, []
        for rate, value in rates:
            rate.assign(value)

    def end(self, model: Any, history: Any) -> None:
        """Saves the end of a call of `fit`, or takes the end that an earlier process has saved."""
        if self._is_done:
            self._take_end(model)
            return
        if self._saved_earlier is not None:
            _log.warning(
                "fit %d of %s raised an exception before the restart, and now it has not: the calls of fit after it begin anew",
                self._progress.fit,
                model.name,
            )
            self._saved_earlier = None
        (values,) = callback_states.states([history])[0].values()  # A subclass has another name.
        states = callback_states.states(each for each in self._callbacks if each is not history)[0]
        self._progress.finished_fits = [*self._progress.finished_fits, [values["epoch"], values["history"], states]]
        self._progress.finished = True
        self._save(model, self._progress.call["epochs"], 0, None)

    def _take_end(self, model: Any) -> None:
        saved, number = self._saved_earlier, self._progress.fit
        assert saved is not None
        if self._end_path is not None:  # Callbacks may have changed the weights at the end of training, once more.
            self._load(model, self._end_path)
        self._progress.finished_fits = saved.finished_fits[:number]
        if self._end_state is not None:
            random_numbers.set_state(self._end_state)
        if saved.fit == number:
            self._saved_earlier, self._last_states = None, saved.finished_fits[number - 1][2]
            self.file.forget()

    def forget_call(self) -> None:
        """Forgets what belongs to a call of `fit` that is over. Callbacks refer to their model, which nobody may need now."""
        self._callbacks, self._restored, self._end_state, self._end_path, self._rates = [], None, None, None, []
        self.has_restored_metrics = False

    # Saving.

    def end_epoch(self, model: Any, epoch: int) -> None:
        """Saves after an epoch, unless `fit` is about to end."""
        if epoch + 1 < self._progress.call["epochs"] and not model.stop_training:
            self._save(model, epoch + 1, 0, _position())

    def end_batch(self, model: Any, epoch: int, batches: int) -> None:
        """Saves within an epoch, if it is time.

        Args:
            model: the model.
            epoch: the number of the epoch.
            batches: how many of its batches are done, as far as Keras knows.
        """
        if self._batches is not None and batches - self._saved_batches >= self._batches:
            self.save_in_epoch(model, epoch, batches)

    def save_in_epoch(self, model: Any, epoch: int, batches: int) -> bool:
        """Saves within an epoch. The arguments are those of `end_batch`.

        Returns:
            False if the epoch is about to end, which saves.
        """
        if model.stop_training:  # Keras makes no more steps. With a backup within the epoch the next process would make them.
            return False
        hooks = hooks_of(model.distribute_strategy)
        done = batches if hooks is None else hooks.batches_done(model, batches)
        position = _position()
        whole = position.iterator.num_batches
        if whole is not None and done >= whole:
            return False
        self._save(model, epoch, done, position)
        return True

    def _save(self, model: Any, epoch: int, batch: int, position: DataPosition | None) -> None:
        if self._saved_earlier is not None:  # This call runs again, and the backup holds a later one.
            return
        metrics = model_states.metrics(model) if batch else []
        self._saved_batches = batch
        if not is_chief() and model_states.is_read_alone(model):
            return
        progress = dataclasses.replace(
            self._progress,
            epoch=epoch,
            batch=batch,
            optimizers=model_states.updated(model),
            kinds=model_states.kinds(model),
            shapes=model_states.shapes(model),
        )
        if position is not None:
            progress.batches_per_epoch = position.iterator._num_batches
            batches = Batches.of(position.iterator)
            progress.batch_size, progress.batch_count = batches.size, batches.count
        progress.random_state = position.random_state if position is not None and batch else random_numbers.state()
        progress.callbacks, kept = callback_states.states(self._callbacks)
        arrays = Arrays(metrics, model_states.seeds(model), model_states.own_variables(model), kept)
        self.file.write(model, progress, arrays)


def _position() -> DataPosition:
    position = data_position.current()
    assert position is not None, "a callback of fit runs outside of fit"
    return position


def _build(model: Any) -> None:
    if (example := getattr(_position().iterator._distributed_dataset, "element_spec", None)) is not None:
        model_states.build(model, example)
