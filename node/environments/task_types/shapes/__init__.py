"""Adapters: rows of data as somebody published them -> one form.

A shape says which rows are of its form and reads one strictly: a key that it does not know may change what is
right, so it is refused. What cannot be read says so in a ValueError. No shape scores anything: task types do
(`task_types.table`).
"""
