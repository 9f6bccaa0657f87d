"""`python -m synflow` is the command `synflow`."""

from .cli import main

if __name__ == "__main__":
    main()
