"""Noise sources: exact on a grid for real parties, seeded for simulations, and on embeddings.

`mechanisms.py` has the interface `NoiseSource` and the seeded source; `secure.py` draws from
`discrete_gaussian.py` with bits of the operating system; `embedding.py` is the papers' noise on
embeddings, which protects no labels.

Where bits come from and how many numbers are drawn ahead may change. A secure number is handed out
once, and never saved or copied; only a source that nobody can recompute has ``is_secret`` true; and
noise on a grid is accounted for as such (`vertizo.privacy.accounting.grid`).
"""
