"""Paths of the checkout and of the programs that tests start."""

from pathlib import Path

CHECKOUT = Path(__file__).parent.parent.parent
PROGRAMS = Path(__file__).parent / "programs"
ORBAX = CHECKOUT / ".venv" / "orbax"
"""Where .ci/tools installs Orbax, apart from the rest."""
