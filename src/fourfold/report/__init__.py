"""What a person sees in a terminal: a run while it trains and after, and a program as a table."""
