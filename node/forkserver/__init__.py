"""Children that are there in milliseconds: forked from a process that has already imported what they need."""
