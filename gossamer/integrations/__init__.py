"""Other libraries' models, seen through Gossamer's eyes; one file per library."""
