"""Finding the first pack that has room."""

from __future__ import annotations


class RoomTree:
    """How much room each of `count` packs has, `room` at first; the largest at every node.

    >>> tree = RoomTree(3, 10)
    >>> tree.put(0, 4)
    >>> tree.first(5, 0), tree.first(4, 0), tree.first(1, 2)
    (1, 0, 2)
    """

    def __init__(self, count: int, room: int) -> None:
        self._leaves = 1 << (count - 1).bit_length()
        self._rooms = [room] * (2 * self._leaves)

    def first(self, need: int, start: int) -> int:
        """The first pack from `start` on with room for `need`; one of them must have it."""
        rooms, node = self._rooms, start + self._leaves
        while rooms[node] < need:
            while node & 1:
                node >>= 1
            node += 1
        while node < self._leaves:
            node *= 2
            node += rooms[node] < need
        return node - self._leaves

    def put(self, pack: int, room: int) -> None:
        """Say how much room a pack has."""
        rooms, node = self._rooms, pack + self._leaves
        rooms[node] = room
        while node > 1:
            node >>= 1
            most = max(rooms[2 * node], rooms[2 * node + 1])
            if rooms[node] == most:
                return
            rooms[node] = most

    def room(self, pack: int) -> int:
        """How much room a pack has."""
        return self._rooms[pack + self._leaves]
