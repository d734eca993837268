"""``twistd iop-control-plane``, ``twistd iop-edge`` and ``twistd iop-node``: names only, loaded when asked for."""

from twisted.application.service import ServiceMaker

control_plane = ServiceMaker(
    "iop Control Plane",
    "iop.control_plane.tap",
    "Keeps provider credentials encrypted; seals one to a Node for one use.",
    "iop-control-plane",
)
edge = ServiceMaker("iop Edge", "iop.edge.tap", "Serves the model API; routes, fences, streams.", "iop-edge")
node = ServiceMaker("iop Node", "iop.node.tap", "Opens leases and calls model providers with them.", "iop-node")
