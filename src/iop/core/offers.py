"""What providers offer and what requests want: who can serve what."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from iop.core.selectors import Selector

#: A provider that lists this as a model serves every model of its target.
ANY_MODEL = "*"


@dataclass(frozen=True, slots=True)
class Offer:
    """One provider of a ready Node.

    :ivar capacity: requests at once.
    :ivar long_capacity: how many of them may be of the long-context class.
    """

    node: str
    provider_id: str
    profile: str
    target: str
    models: frozenset[str]
    capacity: int
    long_capacity: int
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Want:
    """What a route asks for, and for whom.

    ``model`` is the upstream's name of it, ``avoid`` the Nodes that failed already, ``is_long`` whether the request is
    of the long-context class.
    """

    principal: str
    profile: str
    target: str
    model: str
    selector: Selector
    avoid: frozenset[str] = frozenset()
    is_long: bool = False

    def fits(self, offer: Offer) -> bool:
        """Whether ``offer`` can serve it."""
        return (
            offer.profile == self.profile
            and offer.target == self.target
            and offer.node not in self.avoid
            and (self.model in offer.models or ANY_MODEL in offer.models)
            and (not self.is_long or offer.long_capacity > 0)
            and self.selector.matches(offer.labels)
        )

    def unmet(self, offers: Iterable[Offer]) -> str:
        """What none of ``offers``, none of which fits, has beside what was looked at before it, for a person."""
        left = list(offers)
        for lacks, has in (
            ("", lambda offer: offer.node not in self.avoid),
            (f" has the target {self.target}", lambda offer: offer.target == self.target),
            (f" has that target for the profile {self.profile}", lambda offer: offer.profile == self.profile),
            (f" serves {self.model}", lambda offer: self.model in offer.models or ANY_MODEL in offer.models),
            (" takes requests of this size", lambda offer: not self.is_long or offer.long_capacity > 0),
        ):
            left = [offer for offer in left if has(offer)]
            if not left:
                return lacks
        return " has the labels that the route's selector asks for"
