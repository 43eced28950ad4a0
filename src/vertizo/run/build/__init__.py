"""From a configuration and data to parties: models, optimisers, privacy, and what is stated."""
