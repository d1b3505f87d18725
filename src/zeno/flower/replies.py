"""Replies as Flower delivers them: whose they are, and what is wrong with them.

`CheckedGrid` has checked whose a reply is. What it says about itself is checked all the same, as another grid may have
delivered it, and no exception that reading it raises leaves this module.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from flwr.app import ArrayRecord, Error, Message, Metadata, RecordDict
from torch import Tensor, nn

from zeno.flower.arrays import MAX_LETTERS, displacement
from zeno.flower.grid import UNREADABLE
from zeno.problem.errors import text_of, type_name
from zeno.workers.checks import malformed
from zeno.workers.reply import NO_REPLY, ErrorKind, ReplyError

KINDS = {
    3: ErrorKind.LATE,
    4: ErrorKind.LATE,
    5: ErrorKind.DIED,
    8: ErrorKind.DIED,
    UNREADABLE: ErrorKind.MALFORMED,
}
"""By Flower's code: a message or its reply that has expired, a node without a heartbeat, an app that crashed."""


@dataclass(frozen=True)
class Round:
    """The messages of one kind that were sent in a round, by the id of their node."""

    number: int = 0
    kind: str = "train"
    sent: Mapping[int, Metadata] | None = None

    @property
    def nodes(self) -> list[int]:
        return list(self.sent or {})

    def contents(self, replies: Iterable[Message]) -> tuple[dict[int, RecordDict | ReplyError], int]:
        """What each node replied, or why that is not usable; and how many other replies there were."""
        received: dict[int, list[RecordDict | ReplyError]] = {node: [] for node in self.nodes}
        others = 0
        for reply in replies:
            try:
                node, content = self._read(reply)
            except Exception:  # whatever a message of another form raises: it says not even whose it is
                node, content = None, NO_REPLY
            if node is None:
                others += 1
            else:
                received[node].append(content)
        return {node: _only(found) for node, found in received.items()}, others

    def _read(self, reply: Message) -> tuple[int | None, RecordDict | ReplyError]:
        """The node that sent a reply, None if it was not asked, and what it sent."""
        asked, about = self.sent or {}, reply.metadata
        node = about.src_node_id if about.src_node_id in asked else None
        if reply.has_error():
            if node is None:  # the SuperLink replies in place of a node that it cannot reach
                by_message = {sent.message_id: node for node, sent in asked.items() if sent.message_id}
                node = by_message.get(about.reply_to_message_id)
            return node, error_of(reply.error)
        if node is None:
            return None, NO_REPLY
        if about.message_type != self.kind:
            return node, malformed(f"sent a reply to {str(about.message_type)[:MAX_LETTERS]!r}, expected {self.kind!r}")
        other_message = asked[node].message_id and about.reply_to_message_id != asked[node].message_id
        if about.group_id != str(self.number) or other_message:
            return node, malformed(
                f"sent a reply of round {str(about.group_id)[:MAX_LETTERS]!r}, expected one of round {self.number}"
            )
        if not reply.has_content():
            return node, malformed("sent a reply without content")
        content: object = reply.content
        return node, content if isinstance(content, RecordDict) else malformed(f"sent {type_name(content)}")


def error_of(error: Error) -> ReplyError:
    """What Flower delivers in place of a reply."""
    code: object = error.code
    text = str(error.reason or "no reason")
    lines = "".join(letter if letter.isprintable() else " " for letter in text[: 4 * MAX_LETTERS]).split()
    kind = KINDS.get(code, ErrorKind.RAISED) if isinstance(code, int) else ErrorKind.RAISED
    what = "sent" if code == UNREADABLE else "sent an error:"
    return ReplyError(kind, f"{what} {' '.join(lines)}"[:MAX_LETTERS])


def update_of(content: RecordDict | ReplyError, model: nn.Module, x: Tensor) -> Tensor | ReplyError:
    """x - x_i [d] from the content of a reply. Only arrays are read: what a client says about itself is no evidence."""
    if isinstance(content, ReplyError):
        return content
    try:
        records = [record for record in content.values() if isinstance(record, ArrayRecord)]
        if len(records) != 1:
            return malformed(f"sent {len(records)} records of arrays, expected one")
        return displacement(records[0], model, x)
    except Exception as error:  # whatever reading it raises, it is this client's fault
        return malformed(f"sent what cannot be read: {text_of(error)}"[:MAX_LETTERS])


def _only(found: Sequence[RecordDict | ReplyError]) -> RecordDict | ReplyError:
    """The one reply of a node to this round; two of them are none, because nobody knows which it means."""
    usable = [content for content in found if not isinstance(content, ReplyError)]
    if len(usable) > 1:
        return malformed(f"sent {len(usable)} replies, expected one")
    return usable[0] if usable else next(iter(found), NO_REPLY)
