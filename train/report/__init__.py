"""Tables and pictures of runs, and pages of them."""
