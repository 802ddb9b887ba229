"""Python that runs inside the sandbox, as text for its interpreter. Nothing here is imported by the node."""
