"""Named data sets, a file each."""
