"""Analysis: from events to steps, bubbles, stages, links, layer costs and a verdict. Torch-free; computes, draws nothing.

Each module takes the timeline (a data frame of aligned events) or the usable steps made from it, and returns data.
"""
