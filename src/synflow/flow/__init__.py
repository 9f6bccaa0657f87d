"""The idea: positive flow through a network, measured once, and the paths that it follows."""
