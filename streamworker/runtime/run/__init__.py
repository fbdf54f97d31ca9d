"""How one partition runs: calls of the user's function, commits, and what is rolled back."""
