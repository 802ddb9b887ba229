"""The recipe's daemon side: what makes a batch, what a batch was made of, which budgets fit a machine."""
