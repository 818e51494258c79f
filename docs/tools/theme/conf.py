"""Sphinx's settings. `docs/tools/build_site.py` prepares the pages and runs Sphinx."""

from __future__ import annotations

import os
import re
from typing import Any

from build_site import OPTIONAL, ROOT  # which runs Sphinx, so that its folder is on the path

import scdro

project, author, version = "scdro", "The scdro developers", scdro.__version__
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["gallery/*.ipynb"]  # made by sphinx-gallery, to download
sphinx_gallery_conf: dict[str, Any] = {
    "examples_dirs": [str(ROOT / "examples" / "gallery")],
    "gallery_dirs": ["gallery"],
    "filename_pattern": "plot_",
    "within_subsection_order": "FileNameSortKey",
    "abort_on_example_error": True,  # an example that fails is an error of the build
    "download_all_examples": False,
    "show_memory": False,
    "show_signature": False,
    "min_reported_time": 1e9,
    "write_computation_times": False,
    "plot_gallery": "SCDRO_NO_GALLERY" not in os.environ,
    "capture_repr": ("_repr_html_", "__repr__"),
    "copyfile_regex": "",
    "reset_modules": ("matplotlib", "build_site.forget_hooks"),
    "reset_modules_order": "both",
}
myst_enable_extensions = ["colon_fence", "attrs_inline"]
myst_heading_anchors = 4
nb_execution_mode = "off"  # `make notebooks` runs them; the files hold the outputs
suppress_warnings = ["myst.header"]
autodoc_mock_imports = OPTIONAL
autodoc_typehints = "none"  # docstrings say what is meant; overloads would be shown one by one
napoleon_google_docstring, napoleon_numpy_docstring = True, False
napoleon_use_rtype, napoleon_use_ivar = False, True
default_role = "code"

html_theme = "pydata_sphinx_theme"
html_title = "scdro"
html_static_path = ["../../assets"]
html_css_files = ["site.css"]
html_copy_source = html_show_sourcelink = html_show_sphinx = html_show_copyright = False
html_sidebars: dict[str, list[str]] = {
    "reproduction": []
}  # a chapter of one page has nothing to list
html_theme_options: dict[str, Any] = {
    "show_prev_next": False,
    "header_links_before_dropdown": 6,
    "navbar_end": ["theme-switcher"],
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": [],
    "footer_end": [],
}

CODE = re.compile(r"(`[^`]+`)")


def escaped(text: str) -> str:
    """Text of a docstring, where only backquotes mark anything, as reStructuredText."""
    parts = CODE.split(text)
    plain = (re.sub(r"([\\*|]|_(?!\w))", r"\\\1", part) for part in parts[::2])
    marked = [*(f"`{code}`" for code in parts[1::2]), ""]
    return "".join(part for pair in zip(plain, marked, strict=True) for part in pair)


def as_rst(
    _app: Any, _what: str, _name: str, _obj: object, _options: object, lines: list[str]
) -> None:
    """Docstrings are plain text with `code`, formulas and tables indented by four, examples and Google's sections."""
    if any(re.fullmatch(r"-{3,}", line.strip()) for line in lines):
        del lines[
            lines.index("") :
        ]  # LightGBM's and XGBoost's own: their pages describe the parameters
        return
    result: list[str] = []
    section, shown = "", False
    for i, line in enumerate(lines):
        indent = len(line) - len(line.lstrip())
        before = next((other for other in reversed(lines[:i]) if other.strip()), "")
        if re.fullmatch(r"[A-Z]\w+:", line):
            section, shown = line, False
        elif line.strip() and indent == 0:
            section, shown = "", False
        first_of_block = indent >= 4 and not section and not lines[i - 1].strip() and not shown
        if first_of_block:
            result += ["::", ""]
            shown = True
        if shown or section == "Example:" or line.lstrip().startswith((">>>", "...")):
            result.append(line)
        elif section in {"Args:", "Attributes:"} and (
            head := re.match(r"    [\w*, ]+(\(.*?\))?:", line)
        ):
            result.append(head.group() + escaped(line[head.end() :]))
        else:
            result.append(escaped(line) if before is not None else line)
    lines[:] = result


def skipped(_app: Any, _what: str, name: str, _obj: object, skip: bool, _options: object) -> bool:
    """scikit-learn generates these."""
    return skip or re.fullmatch(r"set_\w+_request", name) is not None


def setup(app: Any) -> None:
    app.connect("autodoc-skip-member", skipped)
    app.connect("autodoc-process-docstring", as_rst, priority=100)  # before napoleon
