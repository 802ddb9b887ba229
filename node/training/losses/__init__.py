"""One file per loss, each a pure `token_loss`. The registry calls them by the names that recipes use."""
