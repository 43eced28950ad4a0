"""Words for people: lines of a job, names that may have been meant, strict JSON."""
