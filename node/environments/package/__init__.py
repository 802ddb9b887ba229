"""Environments that anybody writes: one file or a small directory, named by the root of its archive.

`archive` says what a package is, `manifest` what it declares, `loaded` runs its code in the sandbox, and `environment`
is what the rest of the program sees.
"""
