"""Whether callers may ask for models, and how many of them have no whole answer yet (rule S11)."""

from __future__ import annotations

from iop.errors import EdgeDraining


class Door:
    """What every request for a model comes through."""

    def __init__(self) -> None:
        #: Whether nobody is let in.
        self.is_closed = False
        #: Requests in flight.
        self.inside = 0

    def enter(self) -> None:
        """Let a request in; :class:`~iop.errors.EdgeDraining` is raised at a closed door."""
        if self.is_closed:
            raise EdgeDraining
        self.inside += 1

    def leave(self) -> None:
        """A request that was let in is over."""
        self.inside -= 1
