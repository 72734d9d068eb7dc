"""Errors' codes, made of the code: `python -m holdfast.cli.codes` writes core/codes.txt and docs/errors.md."""

from __future__ import annotations

import ast
import difflib
import html
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import holdfast
from holdfast.core.codes import FAMILIES, GAP, REGISTRY, family_of, registry

RAISED = {
    "HoldfastError": 0,
    "Damaged": 0,
    "Unwritable": 0,
    "Crashed": 0,
    "Failed": 0,
    "Refusal": 1,
}  # where the text is
LEAST = 12  # letters that a sentence must say itself to be known again
ALIKE = 0.7  # how much of a sentence is still there when it was only reworded
PAGE = Path(holdfast.__file__).parents[1] / "docs" / "errors.md"
HEAD = """# Errors

*Made of the code by `python -m holdfast.cli.codes`; a test holds the two together.*

An error is one sentence: what is wrong, where, and what to do. A code follows it, which stays the same when the
sentence is reworded: `Error: lr must be positive and momentum in [0, 1), got 0.0 and 0.9. (HF1124)`. Search this page
for the code, or ask `holdfast explain HF1124`.

"…" stands for a value. A code that ends in 00 belongs to a sentence that has no number yet. When something fails at a
site, its sentence stays there; the others are told only a fixed word ([why](site-policy.md#what-is-told-of-errors)).
"""


def templates(tree: ast.Module) -> Iterator[str]:
    """The sentences that a module's errors say, with gaps for values."""
    known: dict[str, list[ast.expr]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            known.setdefault(node.targets[0].id, []).append(node.value)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in RAISED:
            place = RAISED[node.func.id]
            for text in texts(node.args[place], known) if len(node.args) > place else ():
                if sum(letter.isalpha() for letter in text.replace(GAP, "")) >= LEAST:
                    yield text


def texts(node: ast.expr, known: dict[str, list[ast.expr]], deep: int = 3) -> list[str]:
    """All that an expression of a text can be."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.JoinedStr):
        parts = [texts(value, known, 0) if isinstance(value, ast.Constant) else [GAP] for value in node.values]
        return ["".join(words) for words in product(*parts)]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return [a + b for a in texts(node.left, known, deep) for b in texts(node.right, known, deep)]
    if isinstance(node, ast.IfExp):
        return [*texts(node.body, known, deep), *texts(node.orelse, known, deep)]
    if isinstance(node, ast.Name) and deep:
        return [text for value in known.get(node.id, ()) for text in texts(value, known, deep - 1)] or [GAP]
    return [GAP]


def said_by_code() -> dict[int, list[str]]:
    """The sentences of each family, in the order of modules."""
    house = Path(holdfast.__file__).parent
    found: dict[int, list[str]] = {}
    for path in sorted(house.rglob("*.py")):
        module = ".".join(["holdfast", *path.relative_to(house).with_suffix("").parts])
        said = found.setdefault(family_of(module).number, [])
        said += [text for text in templates(ast.parse(path.read_text(encoding="utf-8"))) if text not in said]
    return found


def renew(old: dict[str, str], said: dict[int, list[str]]) -> dict[str, str]:
    """The registry with what is new: a sentence keeps its code, also reworded; one that is gone keeps it for itself.

    >>> renew({"HF1101": "lr must be positive."}, {11: ["lr must be above zero and positive.", "no rounds at all."]})
    {'HF1101': 'lr must be above zero and positive.', 'HF1102': 'no rounds at all.'}
    """
    codes = dict(old)
    for family, sentences in said.items():
        own = {code: words for code, words in codes.items() if code.startswith(f"HF{family}")}
        gone = {words: code for code, words in own.items() if words not in sentences}
        for text in sentences:
            if text in own.values():
                continue
            near = difflib.get_close_matches(text, gone, n=1, cutoff=ALIKE)
            code = gone.pop(near[0]) if near else f"HF{family}{max((int(c[4:]) for c in own), default=0) + 1:02d}"
            assert len(code) == 6, f"family {family} is full; split it"
            codes[code] = own[code] = text
    return dict(sorted(codes.items()))


def page(codes: dict[str, str]) -> str:
    """docs/errors.md."""
    lines = [HEAD]
    for family in FAMILIES:
        own = [(code, words) for code, words in codes.items() if code.startswith(f"HF{family.number}")]
        lines += [f"## {family.title}", "", f"Cause: {family.cause} Cure: {family.cure}", ""]
        if own:
            lines += ["| code | what it says |", "| --- | --- |"]
            lines += [f"| {code} | {shown(words)} |" for code, words in own] + [""]
    return "\n".join(lines).rstrip() + "\n"


def shown(words: str) -> str:
    """A sentence as Markdown shows it."""
    plain = html.escape(words.replace(GAP, "…"), quote=False).replace("|", "\\|").replace("[", "\\[").replace("\n", " ")
    return plain.replace("*", "\\*").replace("_", "\\_") if "`" not in plain else plain


def explain(code: str) -> list[str]:
    """What a code means, in lines for the terminal."""
    family = next((one for one in FAMILIES if code.startswith(f"HF{one.number}")), FAMILIES[-1])
    words = registry().get(code)
    said = [] if words is None else [f"{code}: {words.replace(GAP, '…')}"]
    return [*said, f"{family.title}.", f"Cause: {family.cause}", f"Cure: {family.cure}"]


def main() -> None:
    codes = renew(registry() if REGISTRY.exists() else {}, said_by_code())
    REGISTRY.write_text("".join(f"{code}\t{words}\n" for code, words in codes.items()), encoding="utf-8")
    PAGE.write_text(page(codes), encoding="utf-8")


if __name__ == "__main__":
    main()
