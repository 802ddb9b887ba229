"""The run on this node: the file that its owner writes, what is checked before anybody joins, how its files arrive."""
