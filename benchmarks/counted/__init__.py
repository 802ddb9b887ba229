"""What a process of ours does, counted from within it; nothing of the product knows that it is counted."""
