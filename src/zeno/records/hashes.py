"""A running hash over lines of JSON: each line ends with the hash of itself and of all lines before it.

So a line that was changed, removed or moved after it was written is found. Files of older versions have no hashes.
"""

import hashlib
import re

START = b"start"  # before the first line
NONE = b""  # in a file without hashes
_KEY = b',"hash":"'
_END = b'"}'
_HEX_DIGITS = 32
_LENGTH = len(_KEY) + _HEX_DIGITS + len(_END)


def with_hash(line: bytes, before: bytes) -> tuple[bytes, bytes]:
    """A JSON object with its hash as the last entry, and that hash; `before` is the hash of the line before."""
    content = line[:-1]  # without the closing brace
    found = _hash(content, before)
    return content + _KEY + found + _END, found


def check_hash(line: bytes, before: bytes) -> bytes:
    """The hash of a line; raises ValueError if it does not follow from the line and the hash `before`."""
    content, end = line[:-_LENGTH], line[-_LENGTH:]
    found = _hash(content, before)
    if end == _KEY + found + _END:
        return found
    has_hash = _KEY in end or re.search(rb"[0-9a-f]{%d}" % _HEX_DIGITS, end) is not None
    if before in (START, NONE) and not has_hash:
        return NONE
    raise ValueError("A line has another hash than when it was written.")


def _hash(content: bytes, before: bytes) -> bytes:
    return hashlib.blake2b(before + content, digest_size=_HEX_DIGITS // 2).hexdigest().encode()
