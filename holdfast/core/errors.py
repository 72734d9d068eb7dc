"""Errors that are sentences for the user."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

NOT_DONE = "Not done:"  # how the line of a refusal begins in a site's log
LONGEST = 600  # characters of a sentence


class HoldfastError(Exception):
    """What is wrong, where, and what to do: one sentence, shown to the user without a traceback."""

    code = "internal"  # what others may be told of it: see failures.py

    def __init__(self, sentence: object) -> None:
        super().__init__(plain(str(sentence)))


def plain(text: str, most: int = LONGEST) -> str:
    """A text for one line of a terminal: no control characters, and in a long one the middle left out.

    >>> plain("red: \x1b[31m"), plain("abcdefghij", 7)
    ('red: ?[31m', 'ab ... j')
    """
    if len(text) > most:
        text = f"{text[: most - most // 3 - 3]} ... {text[len(text) - most // 3 + 1 :]}"
    return "".join(letter if letter.isprintable() else " " if letter.isspace() else "?" for letter in text)


EXTRAS = {  # a package that only some parts need -> what of Holdfast brings it
    "flwr": "flower",
    "cryptography": "flower",
    "pydicom": "dicom",
    "datasets": "hub",
    "dp_accounting": "privacy",
    "opacus": "dp",
    "onnx": "export",
    "onnxscript": "export",
    "tensorboard": "export",
    "mlflow": "export",
    "pandas": "export",
}


def missing_package(error: ModuleNotFoundError) -> HoldfastError | None:
    """The sentence for a package that an extra brings; none for any other.

    >>> print(missing_package(ModuleNotFoundError(name="flwr.app")))
    This needs the package flwr, which is not installed: pip install 'holdfast[flower]'.
    """
    package = (error.name or "").partition(".")[0]
    extra = EXTRAS.get(package)
    if extra is None:
        return None
    return HoldfastError(f"This needs the package {package}, which is not installed: pip install 'holdfast[{extra}]'.")


def brief(value: object) -> str:
    """A stranger's value in a few words; nothing that it can be makes this fail.

    >>> brief(7), brief([0.1]), brief("x" * 50), brief(10**400), brief([[1]])
    ('7', '[0.1]', "'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...", 'a whole number of 1329 bits', 'a list')
    """
    if isinstance(value, int) and abs(value) >= 1 << 64:
        return f"a whole number of {value.bit_length()} bits"
    if isinstance(value, list | tuple) and len(value) < 5 and not any(isinstance(v, list | tuple) for v in value):
        return f"[{', '.join(map(brief, value))}]"
    if value is not None and not isinstance(value, str | int | float):
        return f"a {type(value).__name__}"
    text = plain(repr(value[:50] if isinstance(value, str) else value))
    return text if len(text) <= 40 else text[:40] + "..."


def nearest(word: str, known: Iterable[str], most: int = 20) -> str:
    """A closing half-sentence that names the known word that was probably meant; without a near miss, what there is.

    >>> nearest("fedporx", ["fedavg", "fedprox"]), nearest("nu", ["mu"])
    ("did you mean 'fedprox'?", "did you mean 'mu'?")
    >>> nearest("augment", ["rounds", "momentum"])
    'known: rounds, momentum'
    """
    known = list(known)
    close = difflib.get_close_matches(word[:100], known, n=1, cutoff=0.75)
    close = close or [other for other in known if one_edit(word, other)]
    if close:
        return f"did you mean {close[0]!r}?"
    return "known: " + ", ".join(known[:most]) + (f" and {len(known) - most} more" if len(known) > most else "")


def one_edit(a: str, b: str) -> bool:
    """Whether two words of at least two letters differ in one letter, added, left out or replaced."""
    if min(len(a), len(b)) < 2 or abs(len(a) - len(b)) > 1:
        return False
    start = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return a[start + (len(a) >= len(b)) :] == b[start + (len(b) >= len(a)) :]
