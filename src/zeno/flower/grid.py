"""A grid that knows whose reply it receives, and goes on after replies that Flower cannot decode.

A reply of Flower has two parts. The SuperLink checks the first: whose it is, and which message it answers. The bytes of
the second are the client's own. Flower decodes them in the process of the ServerApp, many replies at once, and what
they say about their sender then replaces what was checked. So here, replies are received one by one. An exception is a
fault of the one client whose reply it is, and a reply that names another sender is not used.
"""

import time
from collections.abc import Iterable
from typing import Any

import httpx
from flwr.app import Error, Message, Metadata
from flwr.app.message import make_message
from flwr.serverapp import Grid

from zeno.problem.errors import text_of

WAIT = 1.0  # seconds between two looks at the replies
UNREADABLE = 1_000  # our code of an error in place of a reply; Flower's are below 10
MAX_LETTERS = 100  # of an exception, in a reason


class CheckedGrid(Grid):
    """Another grid, whose replies are received one by one, and have the sender that was asked."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Sends the messages, and waits for their replies: until all are there, or for `timeout` seconds."""
        messages = list(messages)
        ids = list(self._grid.push_messages(messages))
        waiting = {name: message for name, message in zip(ids, messages, strict=False) if name}
        end = None if timeout is None else time.monotonic() + timeout
        found: list[Message] = []
        while waiting:
            for name, message in list(waiting.items()):
                replies = self._replies(name, message)
                if replies:
                    found += replies
                    del waiting[name]
            if not waiting or (end is not None and time.monotonic() > end):
                break
            time.sleep(WAIT)
        return found

    def _replies(self, name: str, message: Message) -> list[Message]:
        """The replies to one message: in place of those that are not usable, an error of the node that was asked."""
        try:
            replies = list(self._grid.pull_messages([name]))
        except (httpx.HTTPError, OSError):  # of the connection to the SuperLink, not of a client
            raise
        except Exception as error:  # whatever decoding raises
            return [_error(message, Error(UNREADABLE, f"bytes that Flower cannot decode: {_short(error)}"))]
        return [_checked(reply, message) for reply in replies]

    def get_node_ids(self) -> Iterable[int]:
        return self._grid.get_node_ids()

    def get_nodes(self) -> Any:
        return self._grid.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self._grid.pull_messages(message_ids)

    @property
    def run(self) -> Any:
        return self._grid.run

    def set_run(self, run: Any) -> None:
        self._grid.set_run(run)

    def create_message(self, *args: Any, **options: Any) -> Message:
        return self._grid.create_message(*args, **options)


def _checked(reply: Message, message: Message) -> Message:
    """The reply itself if it says that the node that was asked sent it."""
    try:
        if reply.has_error():  # of the SuperLink, in the name of a node that it cannot reach, or of the node
            return _error(message, reply.error)
        if reply.metadata.src_node_id == message.metadata.dst_node_id:
            return reply
        return _error(message, Error(UNREADABLE, "a reply that names another node as its sender"))
    except Exception as error:  # whatever a message of another form raises
        return _error(message, Error(UNREADABLE, f"a reply that cannot be read: {_short(error)}"))


def _error(message: Message, error: Error) -> Message:
    """An error in place of the reply to a message."""
    asked = message.metadata
    about = Metadata(
        run_id=asked.run_id,
        message_id="",
        src_node_id=asked.dst_node_id,
        dst_node_id=asked.src_node_id,
        reply_to_message_id=asked.message_id,
        group_id=asked.group_id,
        created_at=time.time(),
        ttl=asked.ttl,
        message_type=asked.message_type,
    )
    return make_message(metadata=about, error=error)


def _short(error: Exception) -> str:
    return text_of(error)[:MAX_LETTERS]
