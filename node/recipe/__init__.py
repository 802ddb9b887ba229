"""The recipe's daemon side: which verified groups make a batch, what a batch was made of, which budgets fit a machine."""
