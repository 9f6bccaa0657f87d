"""Small tools that do not depend on pruning: files, torch modes, passes in chunks, memory."""
