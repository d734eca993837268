"""One command per claim about speed. See README.md here."""
