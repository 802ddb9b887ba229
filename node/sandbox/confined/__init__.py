"""A native Python behind the kernel's walls: Landlock, seccomp, limits. Fast; not the same on every machine."""
