"""Bytes by root: a store of our own, the exchange that fills it from peers, HTTP where peers fail, a door to all."""
