"""The operator's surface: refresh, status, config, runs, receipts, health. Local only (SEC-2)."""
