"""Coverage-guided fuzzing of every parser that reads what others wrote (P32, P33, P35, P37, P38).

``python -m tests.fuzz`` runs all targets, ``python -m tests.fuzz TARGET`` one; see CONTRIBUTING.md.
"""
