# Short names for what contributors do often; CONTRIBUTING.md says when.
PYTHON ?= python

.PHONY: proto docs test lint types

proto: ## regenerate src/iop/wire/*_pb2.py and *_pb2.pyi
	$(PYTHON) proto/generate.py

docs: ## fill in which test proves which rule
	$(PYTHON) -m tests.claims

test: ## unit and integration tests
	$(PYTHON) -m twisted.trial --jobs 2 tests

lint:
	ruff check .
	ruff format --check .

types:
	mypy
