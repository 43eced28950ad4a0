"""What a finished run is used for: predicting, exporting, explaining what it protects."""
