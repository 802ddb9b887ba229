"""Policies as files: publishing, fetching, keeping the newest few."""
