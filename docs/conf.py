"""Settings of the documentation site: `sphinx-build -c docs -W --keep-going . build/site`.

The pages are the Markdown files of the repository as they are. The reference is made from the docstrings and from `--help`.
A broken link, an undocumented public name or an undocumented field of a public class is a warning, and `-W` fails the build.
"""

import dataclasses
import inspect
import re
import subprocess
import sys
import textwrap
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.util import logging

CHECKOUT = Path(__file__).parent.parent
sys.path.insert(0, str(CHECKOUT))

import tfdist  # noqa: E402  from this checkout

_log = logging.getLogger(__name__)

project = "tfdist"
author = "The tfdist authors"
project_copyright = author
version = release = tfdist.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "README"
include_patterns = ["README.md", "BUILD.md", "CHANGELOG.md", "docs/*.md", "docs/dialects/*.md", "benchmarks/*.md"]
exclude_patterns = ["docs/contents.md", "docs/package_index.md"]
html_theme = "furo"
html_title = f"tfdist {release}"
html_extra_path = ["_redirect"]
html_copy_source = False

myst_heading_anchors = 3
suppress_warnings = ["misc.highlighting_failure", "myst.header"]  # blocks such as TF_CONFIG's are fragments of a language
highlight_language = "none"
smartquotes = False  # it would make one dash of the two of a flag

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
napoleon_use_ivar = True
nitpicky = True  # what an annotation names has to be in the reference, or be one of these
nitpick_ignore_regex = [
    ("py:.*", r"(tf|absl|os|collections)\..*"),
    ("py:.*", r"StartTimeoutError|UnsupportedVersionError"),  # in a table of the reference
]


def add_generated_text(_: Sphinx, page: str, source: list[str]) -> None:
    """Gives the front page its table of contents, and the reference the flags of the commands."""
    if page == root_doc:
        source[0] += (CHECKOUT / "docs" / "contents.md").read_text(encoding="utf-8")
    source[0] = re.sub(r"^\{\{ help of (.+) \}\}$", lambda match: _help(match[1]), source[0], flags=re.MULTILINE)


def _help(words: str) -> str:
    command = [sys.executable, "-m", *words.split(), "--help"]
    text = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout
    return f"````text\n{text}````"


def restore_properties(_: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Undoes what napoleon does to properties: it takes all before the first colon for a type."""
    if what == "property":
        lines[:] = [*(inspect.getdoc(obj) or "").splitlines(), ""]


def read_markdown(_: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Makes code, code blocks and tables in a docstring what they are on the pages."""
    text = re.sub(r"(?<!`)`([^`\s]|[^`\s][^`]*[^`\s])`(?!`)", r"``\1``", "\n".join(lines))
    text = re.sub(r"^( *)```(\w+)\n(.*?)^ *```$", _code_block, text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"(^ *\|.*\|\n)+", _table, text + "\n", flags=re.MULTILINE)
    lines[:] = text.splitlines()


def _code_block(match: re.Match[str]) -> str:
    return f"{match[1]}.. code-block:: {match[2]}\n\n" + textwrap.indent(match[3], "   ")


def _table(match: re.Match[str]) -> str:
    rows = [re.split(r"\s*\|\s*", line.strip().strip("|").strip()) for line in match[0].splitlines()]
    indent = match[0][: match[0].index("|")]
    body = [
        "".join(f"   {'* -' if column == 0 else '  -'} {cell}\n" for column, cell in enumerate(row))
        for row in rows[:1] + rows[2:]
    ]
    return textwrap.indent(".. list-table::\n   :header-rows: 1\n\n" + "".join(body), indent)


def check_public_names(_: Sphinx) -> None:
    """Warns of public names without documentation, which autodoc would leave out."""
    reference = (CHECKOUT / "docs" / "reference.md").read_text(encoding="utf-8")
    for name in tfdist.__all__:
        public = getattr(tfdist, name)
        if not re.search(rf"^\.\. auto\w+:: {name}$", reference, re.MULTILINE):
            _log.warning("docs/reference.md does not list tfdist.%s", name)
        if not inspect.getdoc(public):
            _log.warning("tfdist.%s has no docstring", name)
        if not inspect.isclass(public):
            continue
        for member, value in vars(public).items():
            documentable = inspect.isroutine(value) or isinstance(value, property | classmethod | staticmethod)
            if documentable and not member.startswith("_") and not inspect.getdoc(value):
                _log.warning("tfdist.%s.%s has no docstring", name, member)
        for field in dataclasses.fields(public) if dataclasses.is_dataclass(public) else ():
            if not re.search(rf"^\s*{field.name}(, \w+)*:", public.__doc__ or "", re.MULTILINE):
                _log.warning("the docstring of tfdist.%s does not describe %s", name, field.name)


def setup(app: Sphinx) -> None:
    """Connects the functions above."""
    app.connect("source-read", add_generated_text)
    app.connect("builder-inited", check_public_names)
    app.connect("autodoc-process-docstring", restore_properties, priority=600)  # after napoleon
    app.connect("autodoc-process-docstring", read_markdown, priority=700)
