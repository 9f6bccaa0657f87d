"""The idea: positive flow through a network, measured once, and the paths that it follows."""

from . import rules as rules  # fills the table that every measurement reads
