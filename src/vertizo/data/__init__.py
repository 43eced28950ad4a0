"""Named data sets, and how they are cut between parties."""
