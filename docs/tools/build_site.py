"""Build the documentation site: `python docs/tools/build_site.py`, or `make docs`. Warnings are errors.

Pages are plain Markdown that reads well in the repository. This step, which knows nothing of the
generator, writes them to build/docs for Sphinx:

- Links between files of the repository, also out of docs/, become links of the site. What they lead
  to comes along: the README as the first page, tables and figures of results/, sources as pages of
  code; a link whose text is a name leads to the line of that name.
- Formulas between dollar signs become MathML: the site needs no script and no network for them.
- A line `::: scdro.module.name` becomes the description of that name, from its docstring.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import os
import posixpath
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from latex2mathml.converter import convert
from sphinx.cmd.build import build_main
from sphinx.ext.autodoc.mock import mock
from sphinx.pycode import ModuleAnalyzer

ROOT = Path(__file__).parents[2]
OPTIONAL = [
    "lightning",
    "transformers",
    "trl",
    "datasets",
    "accelerate",
    "torchmetrics",
    "wandb",
    "mlflow",
]
SOURCES, SITE = ROOT / "build" / "docs", ROOT / "site"

# In the order of a user's questions. A page that is not listed is reached by links alone.
CHAPTERS: dict[str, list[str]] = {
    "Find": ["audit", "second_look", "choosing"],
    "Fix": ["long_tailed", "train"],
    "Train": [
        "guide",
        "rho",
        "boosting",
        "linear",
        "contrastive",
        "integrations",
        "distributed",
        "tuning",
    ],
    "Trust": ["results", "audit_benchmark", "reproduction", "mathematics"],
    "Look up": [
        "errors",
        "glossary",
        "baselines",
        "leaving",
        "coming_from",
        "examples",
    ],
    "Gallery": ["gallery/index"],
    "Notebooks": [
        f"notebooks/{name}" for name in ("table", "images", "text", "lightning", "hugging_face")
    ],
    "API": ["api/index"],
    "Project": ["CHANGELOG", "CONTRIBUTING", "SECURITY"],
}

CODE = re.compile(
    r"^(?P<fence>```+).*?^(?P=fence)$|^ {4}[^\n]*$|``[^\n]+?``|`[^`\n]+`", re.M | re.S
)
LINK = re.compile(
    r"(?P<text>\[(?:[^\[\]]|\[[^\]]*\])*\])\((?P<target>(?!https?:|#|mailto:)[^)\s#]+)(?P<anchor>#[^)\s]*)?\)"
)
REFERENCE = re.compile(r"\[`?([\w.]+)`?\]\[(scdro[\w.]*)\]")
FORMULA = re.compile(r"\$\$(.+?)\$\$|(?<![\w$\\])\$(?!\s)([^$\n]+?)(?<!\s)\$(?!\w)", re.S)
DESCRIBED = re.compile(
    r"^::: (?P<name>[\w.]+)\n(?:    options:\n      inherited_members:"
    r" \[(?P<inherited>[^\]]*)\]\n)?",
    re.M,
)
UNLISTED = "---\norphan: true\n---\n"
SHOWN = {".py": "python", ".toml": "toml", ".cff": "yaml", ".yml": "yaml", "": "text"}


def site_path(path: str) -> str:
    """Where a file of the repository is among the sources of the site."""
    if path == "README.md":
        return "index.md"
    if (ROOT / path).is_dir():
        return f"{path}/contents.md"
    return f"source/{path}.md" if Path(path).suffix in SHOWN else path.removeprefix("docs/")


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """Apply `change` to all of the text but its code."""
    parts, end = [], 0
    for code in CODE.finditer(text):
        parts += [change(text[end : code.start()]), code.group()]
        end = code.end()
    return "".join([*parts, change(text[end:])])


def resolved(path: str, target: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), target))


def linked(path: str) -> set[str]:
    """Files of the repository that a page links to."""
    text = re.sub(r"^(```+).*?^\1$", "", (ROOT / path).read_text(), flags=re.M | re.S)
    return {resolved(path, link["target"]) for link in LINK.finditer(text)}


def page(path: str) -> str:
    """A Markdown page of the repository, as the site shows it."""
    here = posixpath.dirname(site_path(path)) or "."

    def link(found: re.Match[str]) -> str:
        target = resolved(path, found["target"])
        name = re.fullmatch(r"\[`(\w+)`\]", found["text"])
        if name is not None and target.endswith(".py"):
            return f"{found['text']}(#{label(target, name[1])})"
        return f"{found['text']}({os.path.relpath(site_path(target), here)}{found['anchor'] or ''})"

    text = (ROOT / path).read_text()
    text = re.sub(r"(?<!\$)\$\$(?!\$)(.+?)\$\$", lambda m: formula(m[1], "block"), text, flags=re.S)
    text = outside_code(
        text, lambda part: FORMULA.sub(lambda m: formula(m[2] or m[1], "inline"), part)
    )
    # The text of a link may hold code, so links are looked for everywhere but in blocks of code.
    parts = re.split(r"(^(?:```+).*?^```+$|^ {4}[^\n]*$)", text, flags=re.M | re.S)
    text = "".join(
        part if i % 2 else REFERENCE.sub(r"{py:obj}`\1 <\2>`", LINK.sub(link, part))
        for i, part in enumerate(parts)
    )
    return DESCRIBED.sub(described, text)


def formula(latex: str, display: str) -> str:
    mathml = convert(latex.strip(), display=display).replace("\n", " ")
    # A function's name and its argument stand apart, unless a bracket is between them.
    named = r"<mi>(log|min|max)</mi>(?!<mo[^>]*>(?:\(|&#x00028;)|</munder>|</mrow></munder>)"
    mathml = re.sub(named, r'\g<0><mspace width="0.17em"/>', mathml)
    return f'\n\n<div class="formula">{mathml}</div>\n\n' if display == "block" else mathml


def described(found: re.Match[str]) -> str:
    """The directive for the description of a name, and of the members that it inherits."""
    module, _, name = found["name"].rpartition(".")
    with mock(OPTIONAL):
        value = getattr(importlib.import_module(module), name)
    if not callable(value):  # its description is below it in the source
        module = next(
            other
            for other in sys.modules
            if other.startswith(module) and ("", name) in attribute_descriptions(other)
        )
    kind = "class" if inspect.isclass(value) else "function" if callable(value) else "data"
    options = (
        "   :members:\n   :member-order: bysource\n"
        if kind == "class"
        else "   :no-value:\n"
        if kind == "data"
        else ""
    )
    rest = [f".. auto{kind}:: {module}.{name}\n{options}"]
    for member in filter(None, re.split(r",\s*", found["inherited"] or "")):
        if member in vars(value):
            continue
        what = (
            "property" if isinstance(inspect.getattr_static(value, member), property) else "method"
        )
        rest.append(f"   .. auto{what}:: {found['name']}.{member}\n")
    return "```{eval-rst}\n" + "\n".join(rest) + "```\n"


def attribute_descriptions(module: str) -> Mapping[tuple[str, str], list[str]]:
    analyzer = ModuleAnalyzer.for_module(module)
    analyzer.analyze()
    return dict(analyzer.attr_docs)


def forget_hooks(_settings: object, _script: str, when: str) -> None:
    """Undo what scripts of the gallery leave in the classes that the API pages describe.

    torch puts a profiling wrapper of `step` into the class of every optimizer that is made, where an
    inherited method then looks like the class's own.
    """
    optim = sys.modules.get("scdro.optim")
    for name, kind in vars(optim).items() if optim else ():
        step = vars(kind).get("step") if inspect.isclass(kind) else None
        if (
            step is not None
            and getattr(step, "hooked", False)
            and not step.__qualname__.startswith(f"{name}.")
        ):
            del kind.step


def label(path: str, name: str) -> str:
    """The site's name for a function or class in the page of its source."""
    return re.sub(r"\W+", "-", f"{path}-{name}").lower()


def of_source(path: str) -> str:
    """A page of code, or a list of what is in a folder."""
    place = ROOT / path
    if place.is_dir():
        files = sorted(p.relative_to(place).as_posix() for p in place.rglob("*") if p.is_file())
        shown = "".join(f"- `{name}`\n" for name in files if "__pycache__" not in name)
        return f"{UNLISTED}# {path}\n\nThis folder of the repository holds\n\n{shown}"
    parts, line = [f"{UNLISTED}# {path}\n"], 1
    for code in re.split(r"^(?=(?:def|class) \w)", place.read_text(), flags=re.M):
        name = re.match(r"(?:def|class) (\w+)", code)
        parts.append(f"\n({label(path, name[1])})=\n" if name else "")
        parts.append(
            f"\n::::{{code-block}} {SHOWN[place.suffix]}\n:lineno-start: {line}\n\n{code}\n::::\n"
            if code
            else ""
        )
        line += code.count("\n")
    return "".join(parts)


def assemble() -> None:
    """Write the sources of the site to build/docs."""
    shutil.rmtree(SOURCES, ignore_errors=True)
    waiting = [
        "README.md",
        *(p.relative_to(ROOT).as_posix() for p in (ROOT / "docs").rglob("*.md")),
    ]
    waiting += [f"{name}.md" for name in CHAPTERS["Project"]]
    seen = set(waiting)
    while waiting:
        path = waiting.pop()
        if not (ROOT / path).exists():
            continue  # Sphinx reports the link
        target = SOURCES / site_path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.endswith(".md"):
            target.write_text(page(path))
            waiting += sorted(new := linked(path) - seen)
            seen |= new
        elif target.suffix == ".md":
            target.write_text(of_source(path))
        else:
            shutil.copyfile(ROOT / path, target)
    shutil.copytree(ROOT / "docs" / "notebooks", SOURCES / "notebooks", dirs_exist_ok=True)
    for image in (ROOT / "docs" / "img").iterdir():
        (SOURCES / "img").mkdir(exist_ok=True)
        shutil.copyfile(image, SOURCES / "img" / image.name)
    listed = {name for names in CHAPTERS.values() for name in names}
    for path in sorted(seen):
        target = SOURCES / site_path(path)
        name = site_path(path).removesuffix(".md")
        if (
            path.endswith(".md")
            and target.exists()
            and name not in {*listed, "index"}
            and not name.startswith("api/")
        ):
            target.write_text(UNLISTED + target.read_text())
    chapters = []
    for chapter, names in CHAPTERS.items():
        if len(names) == 1:
            chapters.append(names[0])
            continue
        # A chapter and a page may have the same name: "train" is both.
        name = "chapters/" + re.sub(r"\W+", "_", chapter.lower())
        chapters.append(name)
        pages = "\n".join(f"/{page}" for page in names if list(SOURCES.glob(f"{page}.*")))
        (SOURCES / "chapters").mkdir(exist_ok=True)
        (SOURCES / f"{name}.md").write_text(
            f"# {chapter}\n\n```{{toctree}}\n:maxdepth: 2\n\n{pages}\n```\n"
        )
    with (SOURCES / "index.md").open("a") as index:
        index.write(
            "\n```{toctree}\n:hidden:\n\n" + "\n".join(f"/{name}" for name in chapters) + "\n```\n"
        )
    modules = sorted(p.stem for p in (SOURCES / "api").glob("*.md") if p.stem != "index")
    with (SOURCES / "api" / "index.md").open("a") as index:
        index.write("\n```{toctree}\n:hidden:\n\n" + "\n".join(modules) + "\n```\n")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--no-gallery", action="store_true", help="do not run the scripts of the gallery"
    )
    if parser.parse_args().no_gallery:
        os.environ["SCDRO_NO_GALLERY"] = "1"  # read by theme/conf.py
    assemble()
    shutil.rmtree(SITE, ignore_errors=True)
    config = str(Path(__file__).parent / "theme")
    doctrees = str(ROOT / "build" / "doctrees")
    built = build_main(
        [
            "-W",
            "--keep-going",
            "-q",
            "-b",
            "html",
            "-c",
            config,
            "-d",
            doctrees,
            str(SOURCES),
            str(SITE),
        ]
    )
    shutil.rmtree(
        ROOT / "jupyter_execute", ignore_errors=True
    )  # copies of the notebooks, made by myst-nb
    return int(built)


if __name__ == "__main__":
    sys.exit(main())
