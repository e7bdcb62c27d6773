"""What README.md and docs/ say holds: commands, settings, links, and what is generated."""
