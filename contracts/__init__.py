"""The Solidity contracts, their built artifacts, and the thin Python face of them."""
