"""Planner: from measured layer costs to better cuts, what they would give, and whether they did. Torch-free.

Partition is pure arithmetic; predictions come from the simulator, and are checked by replaying the run that they come from.
"""
