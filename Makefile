# Short names for what contributors do often; CONTRIBUTING.md says when.
PYTHON ?= python

.PHONY: proto test lint types

proto: ## regenerate src/iop/wire/*_pb2.py and *_pb2.pyi
	$(PYTHON) proto/generate.py

test: ## unit and integration tests
	$(PYTHON) -m twisted.trial --jobs 2 tests

lint:
	ruff check .
	ruff format --check .

types:
	mypy
