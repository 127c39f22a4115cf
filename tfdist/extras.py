"""The command that installs an optional dependency."""


def pip_install(extra: str) -> str:
    """Returns the command that installs the packages of an extra of setup.cfg.

    It names the packages and not `tfdist[EXTRA]`, which pip finds only where a package index has tfdist.
    """
    from importlib.metadata import PackageNotFoundError, requires  # Slow to import, and needed only for a message.

    try:
        requirements = requires("tfdist") or []
    except PackageNotFoundError:  # Found by PYTHONPATH.
        requirements = []
    parts = [requirement.partition(";") for requirement in requirements]
    packages = [f"'{package.strip()}'" for package, _, marker in parts if marker.strip() == f'extra == "{extra}"']
    return " ".join(["pip install", *(packages or [f"'tfdist[{extra}]'"])])
