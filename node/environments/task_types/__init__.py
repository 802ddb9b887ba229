"""What rows of published data ask for, one module each: how a row's truth is read, and how answers are scored by it."""
