"""The key `tfdist` of TF_CONFIG."""

from collections.abc import Callable, Mapping
from typing import Any

from tfdist.cluster import EXTENSION, JOBS, Groups
from tfdist.dialects.parsing.command_line import names
from tfdist.dialects.parsing.document import MAX_TASKS, shown
from tfdist.errors import ClusterError, nearest
from tfdist.partition import Partition, devices_fault, layout_fault, parsed_axis
from tfdist.synchronization import DEFAULTS, Synchronization, problem

_KEYS = names(
    "slots worker_groups server_groups separate_servers sync_period synchronization partition share_memory job_dir strategy "
    "min_workers partial evaluators"
)


def is_int(value: object) -> bool:
    """Returns whether `value` is an int and no bool."""
    return isinstance(value, int) and not isinstance(value, bool)


class Extension:
    """Reads the key `tfdist`, where `Cluster.tf_config` puts fields for which TF_CONFIG has no words.

    It is strict, unlike the rest of TF_CONFIG: only tfdist writes this key, so anything unknown is a mistake.
    """

    def __init__(self, values: Mapping[Any, Any], error: Callable[..., ClusterError]) -> None:
        """Takes the content of the key, and what makes the error about a path in TF_CONFIG: `error(message, *path)`."""
        self.error = error
        self.rest: dict[Any, Any] = dict(values)

    def _error(self, key: str, value: object, expected: str) -> ClusterError:
        return self.error(f"{shown(value)} is not right; expected {expected}", EXTENSION, key)

    def flag(self, key: str, default: bool) -> bool:
        """Returns a bool."""
        value = self.rest.pop(key, default)
        if not isinstance(value, bool):
            raise self._error(key, value, "true or false")
        return value

    def text(self, key: str) -> str | None:
        """Returns a text or None."""
        value = self.rest.pop(key, None)
        if value is not None and not isinstance(value, str):
            raise self._error(key, value, "a string")
        return value

    def number(self, key: str) -> int | None:
        """Returns a whole number from 1, or None."""
        value = self.rest.pop(key, None)
        if value is not None and (not is_int(value) or not 1 <= value < 2**31):
            raise self._error(key, value, "a whole number from 1")
        return None if value is None else int(value)

    def synchronization(self) -> Synchronization:
        """Returns the options of synchronization."""
        options = self.rest.pop("synchronization", {})
        if not isinstance(options, Mapping):
            raise self._error("synchronization", options, 'options by name, {"outer": "nesterov"}')
        for name, value in options.items():
            path = (EXTENSION, "synchronization")
            if name not in DEFAULTS:
                raise self.error(f"the option {shown(name)} is not known here{nearest(name, DEFAULTS)}", *path)
            if fault := problem(name, value):
                raise self.error(fault, *path, name)
        return Synchronization(**options)

    def partition(self) -> Partition:
        """Returns which variables are sharded."""
        value = self.rest.pop("partition", None)
        if value is None:
            return Partition()
        expected = '{"layouts": [["dense.*/kernel", "columns"]], "devices": 2}'
        if not isinstance(value, Mapping) or not value.keys() <= {"layouts", "devices"}:
            raise self._error("partition", value, expected)
        layouts, devices = value.get("layouts"), value.get("devices")
        if not isinstance(layouts, list | tuple) or not layouts:
            raise self._error("partition", layouts, expected)
        found = []
        for pair in layouts:
            if not isinstance(pair, list | tuple) or len(pair) != 2:
                raise self._error("partition", pair, expected)
            try:
                pattern, axis = pair[0], parsed_axis(pair[1])
            except ValueError as error:
                raise self.error(str(error), EXTENSION, "partition") from None
            if fault := layout_fault(pattern, axis):
                raise self.error(fault, EXTENSION, "partition")
            found.append((pattern, axis))
        if fault := devices_fault(devices):
            raise self.error(fault, EXTENSION, "partition")
        return Partition(tuple(found), devices)

    def evaluators(self) -> Any:
        """Returns the addresses of the evaluators, unchecked: a list or a mapping as in `cluster`, or None."""
        return self.rest.pop("evaluators", None)

    def groups(self, key: str) -> Groups:
        """Returns the ranks of each group; empty if the key is missing."""
        value = self.rest.pop(key, [])
        expected = "lists of ranks, [[0, 1], [2]]"
        if not isinstance(value, list | tuple) or not all(isinstance(group, list | tuple) for group in value):
            raise self._error(key, value, expected)
        if not all(is_int(rank) for group in value for rank in group):
            raise self._error(key, value, expected)
        return tuple(tuple(group) for group in value)

    def slots(self, job: str, tasks: int) -> list[tuple[int, int]]:
        """Returns slots and GPUs of each task of a job, in order. Default: one slot and no GPU."""
        all_slots = self.rest.get("slots", {})
        expected = f"{{job: [[slots, gpus], ...]}} with one pair for each of the {tasks} {job} tasks"
        if not isinstance(all_slots, Mapping) or not set(all_slots) <= set(JOBS):
            raise self._error("slots", all_slots, expected)
        pairs = all_slots.get(job)
        if pairs is None:
            return [(1, 0)] * tasks
        if not isinstance(pairs, list | tuple) or len(pairs) != tasks:
            raise self._error("slots", pairs, expected)
        result = []
        for pair in pairs:
            if not isinstance(pair, list | tuple) or len(pair) != 2 or not all(is_int(number) for number in pair):
                raise self._error("slots", pair, expected)
            if pair[0] < 1 or not 0 <= pair[1] <= pair[0]:
                raise self._error("slots", pair, "at least one slot, and no more GPUs than slots")
            result.append((pair[0], pair[1]))
        if sum(count for count, _ in result) > MAX_TASKS:
            raise self.error(f"the {job} tasks have more than {MAX_TASKS} slots", EXTENSION, "slots")
        return result

    def check_all_used(self) -> None:
        """Raises ClusterError for a key that no method has read."""
        self.rest.pop("slots", None)
        for key in self.rest:
            raise self.error(f"the key {shown(key)} is not known here{nearest(key, _KEYS)}", EXTENSION)
