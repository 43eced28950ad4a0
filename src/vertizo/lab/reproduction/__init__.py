"""The tables and figures of the papers, each one YAML file, made again and held beside them."""
