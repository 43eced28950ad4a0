"""What leaves the server, and what it comes to: events, accountants, budgets, the guarantee."""
