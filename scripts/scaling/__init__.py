"""What 1, 10 and 1,000 servers do with agents' traffic, simulated on the pure core:
`python -m scripts.scaling`. Each machine has a real prefix cache and a real index of its cold tier;
time comes from a table of assumptions (`assumptions.py`) and an event queue. No mlx, no clock."""
