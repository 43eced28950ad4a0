"""A job between processes: the label holder's service, the member's loop, what both keep."""
