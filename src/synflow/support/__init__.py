"""Small tools that know nothing of pruning: files, torch modes, passes in chunks, memory."""
