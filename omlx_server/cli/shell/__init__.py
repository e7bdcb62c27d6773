"""What all commands have in common: options, output, progress, errors, completion."""
