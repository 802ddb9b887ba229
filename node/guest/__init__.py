"""How a node behaves on a machine that somebody else uses, too: when it rests, what it may take, what it would earn."""
