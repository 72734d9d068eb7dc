"""flower-supernode as Holdfast runs it: `python -m holdfast.engines.flower.node ...` takes the same arguments.

It waits for less long (waits.py), and it forgets a message that it could not receive. Flower's own keeps such a message
when its run has ended meanwhile (a SuperLink that was killed, say): whoever works for the node would then wait for the
rest of it for hours, and do nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.engines.flower.waits import bind, shorten_node


def forgetful(pull_and_store: Callable[..., int | None]) -> Callable[..., int | None]:
    """Flower's function that receives one message, which leaves nothing of one that it could not receive."""

    def pull(*, receive: Callable[[], Any], state: Any, object_store: Any, **more: Any) -> int | None:
        received: list[str] = []

        def noting() -> Any:
            found = receive()
            if found is not None:
                received.append(found[0].metadata.message_id)
            return found

        run = pull_and_store(receive=noting, state=state, object_store=object_store, **more)
        if run is None and received:
            state.delete_messages(message_ids=received)
            object_store.delete(received[0])
        return run

    return pull


def main() -> None:
    from flwr.supernode.cli import flower_supernode

    shorten_node()
    bind("flwr.supernode.start_client_internal", "_pull_and_store_message", forgetful)
    flower_supernode()


if __name__ == "__main__":
    main()
