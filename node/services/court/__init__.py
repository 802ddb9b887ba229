"""What follows from verdicts on chain: stakes that are taken, work that is not paid."""
