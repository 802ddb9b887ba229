"""Everything that can fail before a node is of use, looked at beforehand: one small check a module, each a finding."""
