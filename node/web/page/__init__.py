"""The page: one document that shows the swarm as this node sees it, live, to whoever opens it in a browser."""
