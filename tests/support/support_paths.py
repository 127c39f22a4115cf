"""Paths of the checkout and of the programs that tests start."""

from pathlib import Path

CHECKOUT = Path(__file__).parent.parent.parent
PROGRAMS = Path(__file__).parent / "programs"
ORBAX = CHECKOUT / ".venv" / "orbax"
KUBERNETES_37 = CHECKOUT / ".venv" / "kubernetes_37"
"""Where .ci/tools installs Orbax and a later client of Kubernetes, apart from the rest."""
