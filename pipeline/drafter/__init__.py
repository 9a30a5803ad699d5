"""From proven rows to a drafter that serves. Needs torch and transformers, and is imported by verb alone."""
