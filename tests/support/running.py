"""A stand-in for the executions in flight of a strategy."""


class Running:
    """What `Edits` needs of them: how many there are, and of how many the results were taken.

    Args:
        count: how many there are.
    """

    def __init__(self, count=0):
        self.count, self.taken = count, 0

    def __len__(self):
        return self.count

    def wait_until_idle(self):
        self.count = 0
