"""What is given to users: the distributions, their dependencies, the formula for Homebrew."""
