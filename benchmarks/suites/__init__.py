"""What is timed: `SUITE` of one op per file, and the cases that several of them share."""
