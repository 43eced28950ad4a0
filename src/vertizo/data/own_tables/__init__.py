"""One party's own table: its rows by key, what the party knows of it."""
