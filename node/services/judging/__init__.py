"""A validator's work: every committed file, checked as its lots say, and a signed verdict."""
