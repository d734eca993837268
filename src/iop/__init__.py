"""iop: a model gateway that never holds the key."""
