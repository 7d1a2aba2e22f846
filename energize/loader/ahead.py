"""How much is asked of workers ahead of what is delivered."""

from __future__ import annotations

from energize.loader.shipping import Reply

DEFAULT_ITEMS = 32
"""Items per worker that are read ahead where they are small: enough for hundreds of thousands of
small ones a second."""

DEFAULT_BYTES = 2**29
"""Bytes that one rank's workers read ahead together: 40 photographs of 2000 x 2000 pixels."""

_SECONDS = 0.02
"""What a request should take: long against the cost of sending it, short against waiting for it."""

_MEMORY = 0.7
"""How much of what was known of sizes is kept with each reply."""


class ReadAhead:
    """Counts in items, at most `items` for each worker, and bounds in bytes: those of all items
    that are asked for or not yet delivered, as far as those that came before tell. Each worker has
    one item to do in any case.
    """

    def __init__(self, workers: int, items: int | None, size: int) -> None:
        self._workers = workers
        self._items = (items or DEFAULT_ITEMS) * workers
        self._size = size
        self._bytes = self._seconds = 0.0
        self._known = False
        self._last = 1

    def learn(self, reply: Reply) -> None:
        """Take note of what items of a reply took."""
        if not reply.items:
            return
        size, seconds = reply.size / len(reply.items), reply.seconds / len(reply.items)
        kept = _MEMORY if self._known else 0.0
        # The largest item of a mix decides, and is forgotten only slowly.
        self._bytes = max(size, kept * self._bytes + (1 - kept) * size)
        self._seconds = kept * self._seconds + (1 - kept) * seconds
        self._known = True

    def room(self, outstanding: int) -> int:
        """How many items may be asked for now, when so many have been that are not delivered."""
        if not self._known:
            return int(outstanding < self._workers)
        most = max(self._workers, min(self._items, int(self._size / max(self._bytes, 1.0))))
        if outstanding >= most:
            return 0
        by_time = int(_SECONDS / self._seconds) if self._seconds else self._items
        self._last = max(1, min(most // (2 * self._workers), by_time, 2 * self._last))
        return min(self._last, most - outstanding)
