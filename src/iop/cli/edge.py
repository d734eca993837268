"""``iop edge``: deny and allow Edges."""

from iop.cli.denial import denials_of

edge = denials_of("edge", "Edge")
