"""The Control Plane: keeps credentials encrypted, tells Edges who may use what, seals leases to Nodes."""
