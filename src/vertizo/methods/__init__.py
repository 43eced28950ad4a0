"""The methods: one file each, both halves, to be read beside the paper."""
