"""Functions that a program calls one after the other, each under its name."""


class Cases(list):
    """A list of functions, and the decorator that adds one to it."""

    def __call__(self, function):
        self.append(function)
        return function


class NamedCases(dict):
    """The same, with the functions by their names."""

    def __call__(self, function):
        self[function.__name__] = function
        return function
