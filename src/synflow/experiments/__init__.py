"""The paper's experiments, figure by figure, written on the public API of the library."""
