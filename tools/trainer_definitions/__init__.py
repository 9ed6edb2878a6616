"""Records the names that other trainers take: flags of their command lines, fields of their configurations."""
