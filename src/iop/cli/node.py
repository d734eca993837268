"""``iop node``: deny and allow Nodes (P13)."""

from iop.cli.denial import denials_of

node = denials_of("node", "Node", "From when this returns, no lease is sealed to it.")
