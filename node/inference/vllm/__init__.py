"""The vLLM engine, through vLLM's public hooks only. Importing this package imports no vLLM."""
