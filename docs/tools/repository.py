"""The repository as the site shows it.

Pages link to each other as they do on GitHub, by relative path, also out of docs/. What they link to there is brought
into the site: the README as its first page, tables and figures of results/, and sources as pages of code, where a link
whose text is a name leads to the line of that name. The search leaves these out, but for the README and its like.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
LINK = re.compile(
    r"(?P<text>\[(?:[^\[\]]|\[[^\]]*\])*\])\((?P<target>(?!https?:|#|mailto:)[^)\s#]+)(?P<anchor>#[^)\s]*)?\)"
)
CODE = re.compile(r"^(?P<fence>```+).*?^(?P=fence)$|^ {4}[^\n]*$", re.M | re.S)
SHOWN = {".py": "python", ".toml": "toml", "": "text"}


def of_site(path: str) -> str:
    """Where a file of the repository is among the sources of the site."""
    if path == "README.md":
        return "index.md"
    if (ROOT / path).is_dir():
        return f"{path}/contents.md"
    suffix = Path(path).suffix
    return f"source/{path}.md" if suffix in SHOWN else path.removeprefix("docs/")


def of_repository(source: str) -> str:
    """The file of the repository that a source of the site is made from."""
    if source == "index.md":
        return "README.md"
    if source.startswith("source/"):
        return source.removeprefix("source/").removesuffix(".md")
    if source.endswith("/contents.md"):
        return source.removesuffix("/contents.md")
    return f"docs/{source}" if (ROOT / "docs" / source).exists() else source


def with_links(text: str, change: Callable[[re.Match[str]], str]) -> str:
    """The text with every relative link outside of code replaced."""
    parts, end = [], 0
    for code in CODE.finditer(text):
        parts += [LINK.sub(change, text[end : code.start()]), code.group()]
        end = code.end()
    return "".join([*parts, LINK.sub(change, text[end:])])


def targets(path: str, text: str) -> list[str]:
    """Files of the repository that a page at `path` links to."""
    found: list[str] = []

    def note(link: re.Match[str]) -> str:
        found.append(resolved(path, link["target"]))
        return link.group()

    with_links(text, note)
    return found


def resolved(path: str, target: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), target))


def content(path: str) -> str | bytes:
    """What the site shows of a file or folder of the repository."""
    place = ROOT / path
    if place.is_dir():
        files = sorted(p.relative_to(place).as_posix() for p in place.rglob("*") if p.is_file())
        return f"# {path}\n\nThis folder of the repository holds\n\n" + "".join(f"- `{name}`\n" for name in files)
    if place.suffix in SHOWN:
        return f"# {path}\n\n````{SHOWN[place.suffix]}\n{place.read_text()}\n````\n"
    return place.read_text() if place.suffix == ".md" else place.read_bytes()


def on_files(files: Files, config: Any) -> Files:
    waiting = ["README.md", *(f"docs/{file.src_uri}" for file in files.documentation_pages())]
    seen = set(waiting)
    while waiting:
        path = waiting.pop()
        if not (ROOT / path).exists():
            continue  # mkdocs tells of it
        if not path.startswith("docs/"):
            files.append(File.generated(config, of_site(path), content=content(path)))
        if path.endswith(".md"):
            new = set(targets(path, (ROOT / path).read_text())) - seen
            seen |= new
            waiting += sorted(new)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    here = page.file.src_uri
    if here.startswith(("source/", "results/")) or here.endswith("/contents.md"):
        page.meta["search"] = {"exclude": True}
    if page.parent is None:  # a page without others beside it needs no list of them
        page.meta["hide"] = ["navigation"]
    if here.startswith("source/"):
        return markdown
    path = of_repository(here)

    def change(link: re.Match[str]) -> str:
        target = resolved(path, link["target"])
        where = os.path.relpath(of_site(target), posixpath.dirname(here) or ".")
        return f"{link['text']}({where}{link['anchor'] or line_of(link['text'], target)})"

    return with_links(markdown, change)


def on_post_template(output: str, template_name: str, **_: Any) -> str:
    """The page of what is not there, read from disk as all others."""
    if template_name != "404.html":
        return output
    return re.sub(r'(href="|src="|new URL\(")/', r"\1./", output)


def line_of(text: str, target: str) -> str:
    """The anchor of a function or class in the page of its source, where the text of the link is its name."""
    name = re.fullmatch(r"\[`(\w+)`\]", text)
    if name is None or not target.endswith(".py"):
        return ""
    lines = (ROOT / target).read_text().splitlines()
    numbers = [i for i, line in enumerate(lines, 1) if re.match(rf"(def|class) {name[1]}\b", line)]
    return f"#__codelineno-0-{numbers[0]}" if numbers else "#no-such-name"
