"""``python -m vertizo``."""

from vertizo.cli.main import main

main()
