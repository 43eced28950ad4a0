"""One party's own table: its options, its rows by key, what the party knows of it."""
