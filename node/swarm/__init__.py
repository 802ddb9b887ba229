"""What the members of one pool say to each other: the board of signed messages, and who is a member."""
