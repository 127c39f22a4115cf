"""A `Board` of the tasks of multi_worker_mirrored without TensorFlow."""

import threading


class LocalBoard:
    """What `Board` does, for threads."""

    def __init__(self):
        self.values, self.changed = {}, threading.Condition()

    def put(self, name, value):
        with self.changed:
            assert name not in self.values, f"{name} exists"
            self.values[name] = value
            self.changed.notify_all()

    def take(self, name, seconds):
        with self.changed:
            self.changed.wait_for(lambda: name in self.values, min(seconds, 0.05))
            return self.values.get(name)

    def remove(self, name):
        with self.changed:
            del self.values[name]
