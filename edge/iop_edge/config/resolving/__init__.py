"""From the document as written to the effective config: every reference resolved and checked."""
