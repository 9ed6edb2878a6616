"""Output for the terminal and the browser: a run while it trains and after, a prediction, a plan, a program as a table."""
