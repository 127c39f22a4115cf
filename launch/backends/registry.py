"""The table of back ends: the built-in ones, then those that other packages announce as entry points of `tfdist.backends`.

    [project.entry-points."tfdist.backends"]
    plain = "my_package:BACKEND"

The entry point names a `Backend`. One that cannot be used is left out with a warning that names it; the others still work.
"""

import functools
import re
from collections.abc import Sequence

from tfdist import entry_points
from tfdist.errors import nearest
from tfdist.launch.backends import slurm, srun, ssh
from tfdist.launch.backends.interface import Attached, Backend, BackendError
from tfdist.launch.backends.kubernetes import backend as kubernetes
from tfdist.launch.backends.local import backend as local
from tfdist.launch.backends.ray import backend as ray

BUILT_IN: tuple[Backend, ...] = (local.BACKEND, ssh.BACKEND, slurm.BACKEND, srun.BACKEND, ray.BACKEND, kubernetes.BACKEND)
"""The back ends of this package. A new one is one new file (or folder) and one line here."""

GROUP = "tfdist.backends"

_NAME = re.compile(r"[a-z][a-z0-9_]*", re.ASCII)
_VERBS = ("submit", "status", "logs", "cancel")


@functools.cache
def backends() -> dict[str, Backend]:
    """Returns all back ends by name."""
    return {backend.name: backend for backend in (*BUILT_IN, *load(BUILT_IN))}


def find(name: str) -> Backend:
    """Returns the back end of this name. Raises BackendError, which lists all names, if there is none."""
    known = backends()
    if name not in known:
        raise BackendError(f"{name!r} is not a back end; there are {', '.join(known)}{nearest(name, known)}")
    return known[name]


def load(built_in: Sequence[Backend]) -> list[Backend]:
    """Returns the back ends of installed packages, ordered by the name of the entry point. Logs a warning for each bad one.

    Args:
        built_in: back ends whose names are taken.
    """
    others: list[Backend] = []
    for backend, _ in entry_points.loaded(GROUP, "back end", lambda backend: _fault(backend, [*built_in, *others])):
        others.append(backend)
    return others


def _fault(backend: object, others: Sequence[Backend]) -> str | None:
    """Returns why a back end cannot be used beside `others`, or None."""
    if not isinstance(backend, Backend):
        return f"it is a {type(backend).__name__}; expected a tfdist.launch.backends.interface.Backend"
    if not isinstance(backend.name, str) or not _NAME.fullmatch(backend.name):
        return f"its name is {backend.name!r}; expected lower-case letters, digits and _"
    if not callable(backend.plan):
        return f"its plan is a {type(backend.plan).__name__}; expected a function"
    missing = [verb for verb in _VERBS if not callable(getattr(backend.runs, verb, None))]
    if not isinstance(backend.runs, Attached) and missing:
        return f"its runs is a {type(backend.runs).__name__} without {', '.join(missing)}; expected an Attached or a Detached"
    for other in others:
        if backend.name == other.name:
            return f"the name {backend.name} is taken; choose another"
    # Options are flags of the launcher: this way they meet no other.
    bad = [name for name in backend.options if not (_NAME.fullmatch(name) and name.startswith(f"{backend.name}_"))]
    return f"its option {bad[0]!r} does not begin with {backend.name}_" if bad else None
