"""What `make site` adds to the pages of docs/: pages made of the code, formulas as MathML, and llms.txt.

MathML is drawn by the browser itself, so no script or font is fetched for a formula.
"""

from __future__ import annotations

import html
import re
import shutil
from collections.abc import Iterator
from inspect import getmodule, isclass
from pathlib import Path
from typing import Any

import jupytext
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import holdfast
from holdfast.cli.checking import KINDS, options_of
from holdfast.cli.reference import plain, row
from holdfast.core.rivals import RIVALS, rival

ROOT = Path(__file__).parents[1]
TUTORIALS = sorted((ROOT / "examples" / "tutorials").glob("*.py"))
BESIDE = ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
RESULTS = re.compile(r"<!-- (?:\.\./)?results/.*?<!-- end -->", re.DOTALL)  # a search is for words, not for figures
GROUPS = {
    "Learning": ("algorithm", "optimizer", "server_optimizer", "selection", "workload", "late", "compress"),
    "Absence": ("absence",),
    "Trust": ("trust",),
    "Privacy": ("protect",),
}
COMPARED = "For comparison"  # what only experiments of a comparison name


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The pages of two folders join the navigation."""
    for entry in config.nav:
        if "Methods" in entry:
            entry["Methods"] += [{group: [f"methods/{name}.md" for _, name in found]} for group, found in methods()]
        if "Tutorials" in entry:
            entry["Tutorials"] += [f"tutorials/{path.stem}.md" for path in TUTORIALS]
    return config


def methods() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """All that has a page: groups of (kind, name)."""
    for group, kinds in GROUPS.items():
        yield group, [(kind, name) for kind in kinds for name in KINDS[kind][1] if (kind, name) not in PLAIN]
    yield COMPARED, [(kind, name) for kind, names in RIVALS.items() for name in names]


def title_of(text: str) -> str:
    found = re.search(r"^# (.+)$", text, re.MULTILINE)
    return found[1] if found else ""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for name in ("site.css", "worker.js"):
        files.append(File(name, str(Path(__file__).parent), config.site_dir, config.use_directory_urls))
    for name in BESIDE:
        files.append(File.generated(config, name, content=(ROOT / name).read_text()))
    for path in TUTORIALS:
        files.append(File.generated(config, f"tutorials/{path.stem}.md", content=as_page(path)))
    files.append(File.generated(config, "api.md", content=api()))
    files.append(File.generated(config, "quickstart.md", content=quickstart()))
    return files


def quickstart() -> str:
    """README's walk, which the tests take."""
    use = (ROOT / "README.md").read_text().partition("## Use it\n")[2].partition("\n## ")[0]
    return f"# Quickstart\n\nFrom a clone, on Debian or Ubuntu with Python 3.11 or later, pip and make.\n{use}\n"


def as_page(path: Path) -> str:
    """A tutorial's script as a page: its text, and its code in fences."""
    cells = jupytext.read(path, fmt="py:percent").cells
    parts = [cell.source if cell.cell_type == "markdown" else f"```python\n{cell.source}\n```" for cell in cells]
    run = f"`python examples/tutorials/{path.name}`; `jupytext --to notebook` makes a notebook of it."
    return "\n\n".join([*parts, f"*This page is a script: {run}*"]) + "\n"


def inside(text: str) -> str:
    """A page with its links as they are within the site: pages from beside docs/ stand in it, the code does not."""
    text = re.sub(rf"\]\((?:docs/|\.\./(?={'|'.join(BESIDE)}))", "](", text)
    return re.sub(r"\[([^\]]+)\]\((?:\.\./)?(?:holdfast|tests|benchmarks|examples|README\.md)[^)]*\)", r"\1", text)


def api() -> str:
    """A section for each name that can be imported from `holdfast` itself."""
    lines = ["# API", "", "What `from holdfast import ...` gives; these names are stable from 0.2.0 on.", ""]
    for name in sorted(holdfast.__all__, key=str.lower):
        found = getattr(holdfast, name)
        module = getmodule(found)
        if module is not None and (isclass(found) or callable(found)):
            lines += [f"::: {module.__name__}.{getattr(found, '__name__', name)}", ""]
    return "\n".join(lines)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    markdown = inside(markdown)
    if page.file.src_uri == "methods/index.md":
        return markdown + "\n" + "\n".join(overview())
    kind, name = page.meta.get("kind"), page.meta.get("name")
    return markdown if kind is None else markdown + "\n" + "\n".join(facts(kind, name))


def overview() -> Iterator[str]:
    """All methods, each with a link to its page."""
    for group, found in methods():
        yield f"\n## {group}\n"
        yield from row("name", "what it is")
        yield from row("---", "---")
        for kind, name in found:
            shown = f'[`{kind} = "{name}"`]({name}.md)' if page_of(kind, name) else f'`{kind} = "{name}"`'
            yield from row(shown, plain(first_line(chosen(kind, name))))


def page_of(kind: str, name: str) -> bool:
    """Whether the page of this name is about this choice: "uniform" and "adam" are names of two."""
    path = ROOT / "docs" / "methods" / f"{name}.md"
    return path.exists() and f"kind: {kind}\n" in path.read_text()


def chosen(kind: str, name: str) -> Any:
    return KINDS[kind][1].get(name) or rival(kind, name)


PLAIN = {
    ("absence", "none"),
    ("optimizer", "sgd"),
    ("optimizer", "adam"),  # torch's own, with no rule of the federation's
    ("optimizer", "adamw"),
    ("protect", "none"),
    ("server_optimizer", "none"),
    ("selection", "all"),
    ("workload", "usual"),
    ("selection", "uniform"),
    ("late", "none"),
    ("compress", "none"),
}


def first_line(choice: Any) -> str:
    return (choice.__doc__ or "").strip().split("\n\n")[0].replace("\n", " ")


def facts(kind: str, name: str) -> Iterator[str]:
    """What the code itself says of a method: options, where it lives, what it keeps."""
    choice = chosen(kind, name)
    module = getmodule(choice)
    assert module is not None
    assert module.__file__ is not None
    options = plain(options_of(choice))
    yield "\n## In the code\n"
    yield f'- written as `{kind} = "{name}"`'
    yield f"- options: `{options}`" if options else "- no options"
    yield f"- source: `{Path(module.__file__).relative_to(ROOT)}`"
    if kind == "algorithm":
        yield f"- usual weights: `{choice.weights}`"
    if kind == "trust" and choice.merges_updates:
        yield "- makes new updates of those it sees, so it goes only with algorithms that allow it"


def on_page_content(text: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    def mathml(found: re.Match[str]) -> str:
        display = "block" if found[1] == "div" else "inline"
        return convert(html.unescape(found[2]).strip(), display=display)

    text = FORMULA.sub(mathml, text)
    return RESULTS.sub(lambda found: re.sub("<(table|p)>", r"<\1 data-search-exclude>", found[0]), text)


@event_priority(-100)  # after the search plugin has written its index
def on_post_build(config: MkDocsConfig) -> None:
    """A search that works without a server, and llms.txt: each page with its first sentence, for programs."""
    index = Path(config.site_dir) / "search" / "search_index.json"
    index.with_suffix(".js").write_text(f"var __index = {index.read_text()}")  # a page opened as a file may not fetch
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", ""]
    for path in sorted((ROOT / "docs").rglob("*.md")):
        text = path.read_text()
        first = re.search(r"^(?!#|---|[\w]+:|```|\||!|\*|<)(\S.+?)(?:\n\n|\Z)", text, re.MULTILINE | re.DOTALL)
        where = path.relative_to(ROOT / "docs").with_suffix(".html")
        sentence = first[1].replace("\n", " ").split(". ")[0].rstrip(".") if first else ""
        lines.append(f"- [{title_of(text)}]({where}): {sentence}.")
        target = Path(config.site_dir) / path.relative_to(ROOT / "docs")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    lines += [
        f"- [{title_of(as_page(path))}](tutorials/{path.stem}.html): a tutorial as a script." for path in TUTORIALS
    ]
    (Path(config.site_dir) / "llms.txt").write_text("\n".join(lines) + "\n")
