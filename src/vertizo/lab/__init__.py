"""Many runs: comparisons, searches, reproductions, and the report about them."""
