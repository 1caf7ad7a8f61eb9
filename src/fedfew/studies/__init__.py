"""Studies: many runs declared in one file, and the tables and figures made of them."""
