"""The page's documents in a browser: what the server answers, without a server (`tools/build_site.py`)."""
