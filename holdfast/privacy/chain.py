"""The ledger as a hash chain, so that an older copy of it is told from the newest by anybody who saw a later head.

    link_i = SHA-256(link_{i-1} | entry i as it was written),    link_0 is empty

A ledger and its count can be put back together from yesterday's backup, and nothing in the folder would tell. So the
newest link, the head, goes with each reply over Flower, and the moderator returns the last one that it saw: a site
whose ledger does not hold it refuses. A moderator that gains from a rollback can keep silent; so a policy may name a
`witness`, a file elsewhere in the house (another machine's share), to which the head is written as well. Whoever sets
back the folder and the witness, and whom no moderator contradicts, is not found out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.core.errors import HoldfastError
from holdfast.core.failures import Refusal
from holdfast.core.files import write_file


def links(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """The chain's links, one for each entry; the last one is the head.

    >>> [link[:8] for link in links([{"what": "a"}, {"what": "b"}])]
    ['bf66908b', '0b3fd332']
    """
    found: list[str] = []
    for line in lines:
        text = json.dumps(line, sort_keys=True, allow_nan=False)
        found.append(hashlib.sha256(f"{found[-1] if found else ''}|{text}".encode()).hexdigest())
    return found


def check_head(found: Sequence[str], seen: str, who: str) -> None:
    """Refuse to go on where somebody has seen a head that the chain does not hold."""
    if seen and seen not in found:
        raise Refusal(
            "behind",
            f"ledger: {who} has seen a later one than lies here, so this one is older, or another; nothing is "
            "released until the newest copy is put back.",
        )


def read_witness(path: Path) -> str:
    """The head that a witness has seen; empty: it has seen none."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError):
        raise Refusal("ledger", f"ledger: the witness {path} cannot be read; nothing is released.") from None
    if len(text) != 64:
        raise Refusal("ledger", f"ledger: the witness {path} is damaged; nothing is released.")
    return text


def write_witness(path: Path, head: str) -> None:
    try:
        write_file(path, f"{head}\n".encode())
    except HoldfastError:
        raise Refusal("ledger", f"ledger: the witness {path} cannot be written; nothing was released.") from None
