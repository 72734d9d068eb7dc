"""HTML in which every text is escaped unless it was made here."""

from __future__ import annotations

import html


class Html(str):
    """A text that is HTML already; only `el` makes it of strangers' texts."""

    __slots__ = ()


def el(tag: str, *children: object, **attributes: object) -> Html:
    """An element; an attribute's trailing underscore is dropped, and one of None or False left out.

    >>> el("p", "<script>", el("b", 3), class_='a"b', hidden=True, title=None)
    '<p class="a&quot;b" hidden>&lt;script&gt;<b>3</b></p>'
    """
    words = [f"<{tag}"]
    for name, value in attributes.items():
        key = name.rstrip("_").replace("_", "-")
        if value is True:
            words.append(f" {key}")
        elif value is not None and value is not False:
            words.append(f' {key}="{html.escape(str(value))}"')
    words.append(">")
    inside = "".join(one if isinstance(one, Html) else html.escape(str(one)) for one in children if one is not None)
    return Html("".join(words) + (inside if tag in VOID else f"{inside}</{tag}>"))


VOID = ("input", "br", "meta", "link")


def join(*parts: Html | None) -> Html:
    return Html("".join(part for part in parts if part is not None))
