"""Task definitions and items that the harness reads: our own, and HumanEval run in our sandbox."""
