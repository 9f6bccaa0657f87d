"""Models by name: built-in networks, and those of timm, torchvision, transformers and Python files."""
