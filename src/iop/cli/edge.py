"""``iop edge``: deny and allow Edges."""

from iop.cli.denial import denials_of

edge = denials_of(
    "edge",
    "Edge",
    "From when this returns, no connection of it is accepted, and one that is open is closed; leases it holds expire.",
)
