"""CPython for WASI in wasmtime, with counted instructions: the same outcome on every machine, to the instruction.

Every function that the guest imports is our own and deterministic: no clock, no randomness, no file of the host.
"""
